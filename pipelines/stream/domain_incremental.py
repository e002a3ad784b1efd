"""Domain-incremental streams: the same classes again and again, each time from another domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from pipelines.stream.names import check_names, some
from pipelines.stream.settings import ScenarioSettings, TaskPlan, rows_of
from workers.errors import DataError, SettingsError
from workers.wording import plural

if TYPE_CHECKING:
    from pipelines.sources import Listing


class DomainIncrementalSettings(ScenarioSettings):
    """One task a domain, named as it; domains come from a column or from folders."""

    scenario: Literal["domain_incremental"]
    domains: list[str] | None = Field(
        default=None, description="every domain in the order it arrives; left out: sorted names"
    )
    shuffle_domains: bool = Field(default=False, description="permute the domains by the seed")

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if self.domains is not None:
            if len(set(self.domains)) < len(self.domains):
                raise ValueError("domains names a domain more than once")
            if self.shuffle_domains:
                raise ValueError("domains fixes the order; leave shuffle_domains out")
        return self

    def plan(self, listing: Listing, *, seed: int) -> list[TaskPlan]:
        plans = []
        for domain in self._ordered(listing, seed):
            train = rows_of(listing, split="train", domain=domain)
            if len(train) == 0:
                raise DataError(
                    f"domain {domain!r} has test samples only, with nothing to train on"
                )
            taught = set(listing.samples["label"].take(train).to_pylist())
            plans.append(
                TaskPlan(
                    name=domain,
                    domain=domain,
                    classes=tuple(name for name in listing.classes if name in taught),
                    train=train,
                    test=rows_of(listing, split="test", domain=domain),
                )
            )
        return plans

    def _ordered(self, listing: Listing, seed: int) -> list[str]:
        known = domains_of(listing)
        if self.domains is not None:
            check_names("stream.domains", self.domains, known, what="domain")
            missing = [name for name in known if name not in self.domains]
            if missing:
                raise SettingsError(
                    f"stream.domains leaves out {some(missing)}; name every domain, or list the tasks you want "
                    "with scenario: explicit"
                )
            return list(self.domains)
        if self.shuffle_domains:
            return [known[at] for at in np.random.RandomState(seed).permutation(len(known))]
        return known


def domains_of(listing: Listing) -> list[str]:
    """The sorted names of a listing's domains.

    Raises:
        DataError: the samples have none, or some have none.
    """
    names = sorted(listing.samples["domain"].unique().to_pylist())
    if names == [""]:
        raise DataError(
            "the samples have no domains: set source.domain_folders: true for folders domain/class, or bring a "
            "column 'domain' (source.domain_column)"
        )
    if names[0] == "":
        count = len(rows_of(listing, split="train", domain="")) + len(
            rows_of(listing, split="test", domain="")
        )
        raise DataError(f"{plural(count, 'sample')} with an empty domain; give each sample one")
    return names
