"""From an experiment to a sweep: its name, its space, and what each trial's settings mean.

Everything wrong with the space is said here, before a sample is listed or a process started.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.experiment import Experiment
from orchestrator.experiment_files import apply_overrides, parse_experiment, read_source
from orchestrator.yaml_text import write_yaml
from pipelines.features import FeaturePlan
from pipelines.search.ledger import TrialRecord
from pipelines.search.settings import DEFAULT_TRIALS, Domain
from pipelines.search.space import (
    SEARCHABLE,
    SearchSpace,
    as_text,
    default_space,
    get_at,
    set_at,
)
from pipelines.search.trial_settings import TrialSettings
from pipelines.stream import Stream, build_stream
from workers.errors import SettingsError
from workers.storage.filesystem import Storage

PUBLISHED = {"recipe": "tosca"}
"""Settings of the yardstick: the published recipe, with nothing of the experiment's own in its place."""

_RECIPE_KEYS = ("recipe", "luca", "learning", "whitening")
_NO_RESULT = frozenset({"cluster", "tracking", "storage", "description", "bank", "gate"})
_NO_TRIAL = frozenset({"trials", "max_concurrent", "retries", "tolerance"})


@dataclass(frozen=True)
class Sweep:
    """An experiment to be swept.

    Attributes:
        data: the experiment as the user wrote it, overrides laid over; trials are laid over that.
        experiment: the same, validated.
        space: what varies; listed values as the settings understand them.
        id: names the sweep; the same experiment on the same samples has the same (see ``on``).
    """

    data: Mapping[str, Any]
    experiment: Experiment
    space: SearchSpace
    id: str

    @classmethod
    def of(cls, source: str, overrides: Sequence[str]) -> Sweep:
        """Read an experiment, as ``luca run`` does, and make a sweep of it.

        Raises:
            SettingsError: the experiment or its search space is wrong.
        """
        data = apply_overrides(read_source(source), overrides)
        data.setdefault("name", Path(source).stem)
        return cls.from_data(data, where=source, overrides=overrides)

    @classmethod
    def from_data(
        cls, data: Mapping[str, Any], *, where: str, overrides: Sequence[str] = ()
    ) -> Sweep:
        """As ``of``, from an experiment that is read already."""
        experiment = parse_experiment(data, where=where, overrides=overrides)
        domains = experiment.search.space or default_space(l1_mode=experiment.learning.l1_mode)
        space = _understood(data, domains)
        return cls(data, experiment, space, _name(experiment, space))

    @property
    def directory(self) -> str:
        """Its place in the storage."""
        return f"sweeps/{self.id}"

    @property
    def trials(self) -> int:
        """How many trials there shall be, the published recipe included."""
        settings = self.experiment.search
        if settings.trials is not None:
            return settings.trials
        return 1 + len(self.space.grid()) if settings.method == "grid" else DEFAULT_TRIALS

    def resolve(self, settings: Mapping[str, Any], published: bool) -> TrialSettings:
        """What a trial needs to know.

        Raises:
            SettingsError: the settings do not work together.
        """
        e = self._experiment(settings, published=published)
        return TrialSettings(
            luca=e.luca, learning=e.learning, whitening=e.whitening, evaluation=e.scoring
        )

    def chosen(self, record: TrialRecord) -> Experiment:
        """The experiment with a trial's settings, on a bank of its own unless the experiment names one."""
        e = self._experiment(record.settings, published=record.published)
        if self.experiment.bank is not None:
            return e
        ending = f"-{self.id.rsplit('-', 1)[1]}-{record.id}"
        return e.model_copy(update={"bank": f"{e.name[: 100 - len(ending)]}{ending}"})

    def on(self, streams: Sequence[tuple[Stream, FeaturePlan, int]]) -> Sweep:
        """The sweep on these samples: with others, the same experiment makes another sweep."""
        digest = hashlib.sha256(self.id.encode())
        for stream, _, _ in streams:
            for task in stream.tasks:
                digest.update(stream.definition(task).digest.encode())
        return replace(self, id=f"{self.id.rpartition('-')[0]}-{digest.hexdigest()[:10]}")

    def streams(self) -> list[tuple[Stream, FeaturePlan, int]]:
        """One a repeat: the stream with validation samples held out, its feature parts, the seed of learning.

        Raises:
            DataError: the samples do not make the stream.
            SettingsError: repeats over class orders of a stream whose order is fixed.
        """
        e = self.experiment
        storage = Storage.open(e.storage)
        index = str(storage.local_path("index")) if storage.is_local else None
        settings = e.stream
        if not settings.validation_fraction:
            update = {"validation_fraction": e.search.validation_fraction}
            settings = settings.model_copy(update=update)
        orders = e.search.repeat_over == "class_orders"
        found: list[tuple[Stream, FeaturePlan, int]] = []
        for repeat in range(e.search.repeats):
            seed = e.seed + repeat
            if orders or not found:
                stream = build_stream(settings, seed=seed if orders else e.seed, cache_dir=index)
                # Views of a training sample are seeded by the experiment, so that they serve all repeats.
                plan = FeaturePlan(stream, e.features, seed=e.seed)
            found.append((stream, plan, seed))
        if orders and len(found) > 1 and len({stream.classes for stream, _, _ in found}) == 1:
            raise SettingsError(
                "search.repeat_over is class_orders, but the stream has one fixed order of classes; "
                "use search.repeat_over: seeds, or let the seed shuffle the classes"
            )
        return found

    def to_yaml(self) -> str:
        """The experiment as it was given, to be read again by ``from_data``; where it is stored is left out."""
        data = {key: value for key, value in self.data.items() if key != "storage"}
        return write_yaml(json.loads(json.dumps(data, default=str)))

    def _experiment(self, settings: Mapping[str, Any], *, published: bool) -> Experiment:
        data = dict(self.data)
        if published:
            data = {key: value for key, value in data.items() if key not in _RECIPE_KEYS}
            # A recipe may say how to predict too; the yardstick is judged by the router that trials are judged by.
            data["evaluation"] = self.experiment.evaluation.model_dump(mode="json")
        for key, value in settings.items():
            data = set_at(data, key, value)
        return parse_experiment(data, where=_written(settings))


def _understood(data: Mapping[str, Any], domains: Mapping[str, Domain]) -> SearchSpace:
    """The space with every listed value as the settings understand it ('1e-4' is a number), each once.

    Raises:
        SettingsError: a key does not exist or cannot be searched, or a value is refused.
    """
    space = SearchSpace(domains)
    understood: dict[str, dict[str, Any]] = {}
    for key, value in space.extremes():
        experiment = parse_experiment(
            set_at(data, key, value), where=f"search.space: {_written({key: value})}"
        )
        if key.split(".", 1)[0] not in SEARCHABLE:
            raise SettingsError(
                f"search.space: {key} cannot be searched: keys below {', '.join(SEARCHABLE)} can"
            )
        meant = get_at(experiment.model_dump(mode="json"), key)
        understood.setdefault(key, {})[as_text(meant)] = meant
    return SearchSpace(
        {
            key: tuple(understood[key].values()) if isinstance(domain, tuple) else domain
            for key, domain in domains.items()
        }
    )


def _name(experiment: Experiment, space: SearchSpace) -> str:
    """The experiment's name and a digest of all that decides what trials measure and which are tried."""
    identity = experiment.model_dump(mode="json", exclude=set(_NO_RESULT))
    identity["search"] = {k: v for k, v in identity["search"].items() if k not in _NO_TRIAL}
    identity["search"]["space"] = {
        key: list(domain) if isinstance(domain, tuple) else domain.model_dump(mode="json")
        for key, domain in space.domains.items()
    }
    text = json.dumps(identity, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{experiment.name[:80]}-sweep-{digest}"


def _written(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={as_text(value)}" for key, value in settings.items())
