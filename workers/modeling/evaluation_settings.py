"""How a bank is evaluated: which routers, how they are combined with the modules, which baselines beside."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, field_validator, model_validator
from typing_extensions import Self

from workers.errors import SettingsError
from workers.modeling.baseline_settings import BASELINE_SETTINGS
from workers.modeling.router_settings import ROUTER_SETTINGS, Combination
from workers.modeling.statistics_settings import StatisticsSettings
from workers.settings import Listed, Settings

if TYPE_CHECKING:
    from workers.modeling.bank_tensors import BankTensors
    from workers.modeling.projection import RandomProjection
    from workers.modeling.routers import Router
    from workers.modeling.whitening import Whitening


def _options(name: str, registry: Mapping[str, type[Settings]], what: str) -> type[Settings]:
    """A settings model with one field a component, holding that component's own settings."""
    fields: dict[str, Any] = {
        key: (own, Field(default=own(), description=f"Settings of {what} '{key}'."))
        for key, own in registry.items()
    }
    model: type[Settings] = create_model(name, __base__=Settings, **fields)
    return model


RouterOptions = _options("RouterOptions", ROUTER_SETTINGS, "router")
BaselineOptions = _options("BaselineOptions", BASELINE_SETTINGS, "baseline")


class EvaluationSettings(Settings):
    """Key ``evaluation`` of an experiment."""

    routers: Listed[str] = Field(
        ("lda", "entropy", "batch_entropy", "oracle"),
        description=f"Routers to report, of {', '.join(ROUTER_SETTINGS)}; the first one is the headline. "
        "Where the stream gives the task (task_incremental), oracle always leads.",
    )
    combination: Combination = Field(
        "product", description="How the router's belief and the modules' are joined."
    )
    baselines: Listed[str] = Field(
        ("simplecil", "joint_linear"),
        description=f"Methods to run on the same features, of {', '.join(BASELINE_SETTINGS)}.",
    )
    statistics: StatisticsSettings = Field(
        default=StatisticsSettings(), description="What is kept of every task for routers."
    )
    router_options: RouterOptions = Field(  # type: ignore[valid-type]
        default=RouterOptions(), description="Settings of single routers, by name."
    )
    baseline_options: BaselineOptions = Field(  # type: ignore[valid-type]
        default=BaselineOptions(), description="Settings of single baselines, by name."
    )

    @field_validator("routers")
    @classmethod
    def _known_routers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one router")
        return _known(names, ROUTER_SETTINGS, "router")

    @field_validator("baselines")
    @classmethod
    def _known_baselines(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, BASELINE_SETTINGS, "baseline")

    @property
    def reported_routers(self) -> tuple[str, ...]:
        """The routers to evaluate; beside ``batch_entropy`` its shuffled variant is always shown."""
        names = list(self.routers)
        if "batch_entropy" in names and "batch_entropy_shuffled" not in names:
            names.insert(names.index("batch_entropy") + 1, "batch_entropy_shuffled")
        return tuple(names)

    @property
    def with_tasks_given(self) -> EvaluationSettings:
        """The same where every test sample comes with its task (task-incremental streams).

        The router that is told the task leads, as the headline, and decides among the task's own classes.
        """
        options: Settings = self.router_options
        told: Settings = getattr(options, "oracle")  # noqa: B009
        own = told.model_copy(update={"own_classes_only": True})
        return self.model_copy(
            update={
                "routers": ("oracle", *(name for name in self.routers if name != "oracle")),
                "router_options": options.model_copy(update={"oracle": own}),
            }
        )

    @model_validator(mode="after")
    def _one_random_feature_space(self) -> Self:
        if len(asked := self._random_features_asked()) > 1:
            (first, one), (second, other) = list(asked.items())[:2]
            raise ValueError(
                f"router_options.{first} asks for {one} random features and router_options.{second} for {other}: "
                "a bank keeps the statistics of one random feature space, so give both the same number, or one 0"
            )
        return self

    @property
    def random_features(self) -> int:
        """Random features whose statistics are collected for ridge regression in a router; 0 when none are."""
        return next(iter(self._random_features_asked().values()), 0)

    def _random_features_asked(self) -> dict[str, int]:
        """Sizes other than 0 that named routers ask for, each once, by the place of the setting that asks."""
        options: Any = self.router_options
        places = {
            "ridge": ("ridge", options.ridge),
            "lda_ridge": ("lda_ridge.ridge", options.lda_ridge.ridge),
        }
        asked: dict[str, int] = {}
        for place, ridge in (places[name] for name in self.routers if name in places):
            if ridge.random_features and ridge.random_features not in asked.values():
                asked[f"{place}.random_features"] = ridge.random_features
        return asked

    def fit_router(self, name: str, bank: BankTensors) -> Router:
        """The router called ``name``, fitted to a bank.

        Raises:
            SettingsError: There is no such router.
            BankError: The bank lacks what the router needs.
        """
        from workers.modeling.routers import ROUTERS

        try:
            _known((name,), ROUTER_SETTINGS, "router")
        except ValueError as error:
            raise SettingsError(f"{error}.") from None
        return ROUTERS[name].fit(bank, getattr(self.router_options, name))

    def projection(
        self, *, width: int, seed: int, whitening: Whitening | None
    ) -> RandomProjection | None:
        """The random features whose statistics have to be collected, or None.

        Asked for by routers ``ridge`` and ``lda_ridge`` with ``random_features``; ``seed`` is that of the run.
        """
        from workers.modeling.projection import ProjectionSpec, RandomProjection

        size = self.random_features
        if size == 0:
            return None
        spec = ProjectionSpec(seed=seed, width=width, size=size, whitened=whitening is not None)
        return RandomProjection(spec, whitening)


def _known(
    names: Iterable[str], registry: Mapping[str, type[Settings]], what: str
) -> tuple[str, ...]:
    found = tuple(names)
    for name in found:
        if name not in registry:
            close = difflib.get_close_matches(name, registry, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"there is no {what} {name!r} (known: {', '.join(registry)}){hint}")
    if len(set(found)) != len(found):
        raise ValueError(f"the same {what} is named twice")
    return found
