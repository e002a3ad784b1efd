"""Explicit streams: the tasks one by one, by classes, by domain or by files, in the order they arrived."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from typing_extensions import Self, override

from pipelines.sources.files import locate
from pipelines.stream.domain_incremental import domains_of
from pipelines.stream.names import check_names, some
from pipelines.stream.settings import ScenarioSettings, TaskPlan, rows_of, task_name
from workers.errors import DataError, SettingsError
from workers.settings import Settings
from workers.wording import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipelines.sources import Listing


class ExplicitTask(Settings):
    """One task: the samples that meet everything that is said here."""

    name: str | None = Field(default=None, description="left out: task-01, task-02, ...")
    classes: list[str] | None = Field(default=None, description="class names, in order")
    domain: str | None = None
    files: list[str] | None = Field(
        default=None,
        description="files or folders the samples lie in: paths, endings of paths, or patterns with * and ?",
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.classes and self.domain is None and not self.files:
            raise ValueError("a task needs classes, domain or files")
        if self.classes and len(set(self.classes)) < len(self.classes):
            raise ValueError("a task names a class twice")
        return self


class ExplicitSettings(ScenarioSettings):
    """Tasks as listed; no sample may belong to two of them.

    Where tasks are given by files, test samples in files of no task belong to the first task that trains their class.
    """

    scenario: Literal["explicit"]
    tasks: list[ExplicitTask] = Field(min_length=1)
    unlisted: Literal["refuse", "leave_out"] = Field(
        default="refuse", description="what to do with samples that belong to no task"
    )

    @model_validator(mode="after")
    def _no_class_twice(self) -> Self:
        claims: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
        for number, task in enumerate(self.tasks, start=1):
            if task.files:
                continue
            for name in task.classes or []:
                for first, domain in claims[name]:
                    if domain == task.domain or None in (domain, task.domain):
                        raise ValueError(
                            f"tasks {first} and {number} both claim class {name!r}; a class belongs to one task, "
                            "or to one task of each domain"
                        )
                claims[name].append((number, task.domain))
        return self

    @override
    def plan(self, listing: Listing, *, seed: int) -> list[TaskPlan]:
        by_files = any(task.files for task in self.tasks)
        locations = (
            listing.samples["location"].combine_chunks().dictionary_encode() if by_files else None
        )
        cut = [self._rows(listing, at, locations) for at in range(len(self.tasks))]
        train, test = [rows for rows, _ in cut], [rows for _, rows in cut]
        if by_files:
            test = self._share_test_files(listing, train, test)
        plans = []
        for at, task in enumerate(self.tasks):
            name = task.name or task_name(at)
            taught = set(listing.samples["label"].take(train[at]).to_pylist())
            absent = [label for label in task.classes or [] if label not in taught]
            if absent:
                raise DataError(f"task {name!r} has no training samples of {some(absent)}")
            plans.append(
                TaskPlan(
                    name=name,
                    domain=task.domain or "",
                    classes=tuple(
                        task.classes or [label for label in listing.classes if label in taught]
                    ),
                    train=train[at],
                    test=test[at],
                )
            )
        self._check_claims(listing, plans)
        return plans

    def _rows(
        self, listing: Listing, at: int, locations: pa.DictionaryArray | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A task's rows in train and in test."""
        task = self.tasks[at]
        if task.classes:
            check_names(f"stream.tasks.{at}.classes", task.classes, listing.classes, what="class")
        if task.domain is not None:
            check_names(
                f"stream.tasks.{at}.domain", [task.domain], domains_of(listing), what="domain"
            )
        train, test = (
            rows_of(listing, split=split, classes=task.classes, domain=task.domain)
            for split in ("train", "test")
        )
        if not task.files or locations is None:
            return train, test
        names = locations.dictionary
        chosen = np.zeros(len(names), dtype=bool)
        for pattern in task.files:
            hits = lying_in(names, pattern)
            if not hits.any():
                raise SettingsError(
                    f"stream.tasks.{at}.files: no sample lies in {pattern!r}; samples lie in "
                    f"{some(names.to_pylist(), 4)}"
                )
            chosen |= hits
        inside = chosen[locations.indices.to_numpy()]
        return train[inside[train]], test[inside[test]]

    def _share_test_files(
        self, listing: Listing, train: list[NDArray[np.int64]], test: list[NDArray[np.int64]]
    ) -> list[NDArray[np.int64]]:
        """Give test samples of unclaimed files to the first task that trains their class."""
        labels = listing.samples["label"].to_numpy()
        locations = listing.samples["location"].to_numpy()
        claimed = {name for rows in (*train, *test) for name in set(locations[rows].tolist())}
        free = np.array(
            [row for row in rows_of(listing, split="test") if locations[row] not in claimed],
            dtype=np.int64,
        )
        first: dict[str, int] = {}
        for at, rows in enumerate(train):
            for label in set(labels[rows].tolist()):
                first.setdefault(label, at)
        home = np.array([first.get(label, -1) for label in labels[free].tolist()], dtype=np.int64)
        return [np.sort(np.concatenate([own, free[home == at]])) for at, own in enumerate(test)]

    def _check_claims(self, listing: Listing, plans: list[TaskPlan]) -> None:
        owner = np.full(listing.samples.num_rows, -1, dtype=np.int64)
        for at, plan in enumerate(plans):
            rows = np.concatenate([plan.train, plan.test])
            other = rows[owner[rows] >= 0]
            if len(other):
                label = listing.samples["label"][int(other[0])].as_py()
                raise SettingsError(
                    f"stream.tasks: {plans[owner[other[0]]].name!r} and {plan.name!r} both claim {len(other)} "
                    f"samples, such as of class {label!r}; a sample belongs to one task"
                )
            owner[rows] = at
        nobody = np.flatnonzero(owner < 0)
        if len(nobody) and self.unlisted == "refuse":
            labels = sorted(set(listing.samples["label"].take(pa.array(nobody)).to_pylist()))
            raise DataError(
                f"labels outside the stream: {plural(len(nobody), 'sample')} of {some(labels)} in no task; "
                "list them, or set stream.unlisted: leave_out"
            )


def lying_in(locations: pa.Array, pattern: str) -> NDArray[np.bool_]:
    """Which files are, or lie in, what a path, an ending of a path or a pattern names, bool [n]."""
    absolute = locate(pattern) if "://" not in pattern else pattern
    ending = "/" + pattern.strip("/")
    hits: NDArray[np.bool_] = np.zeros(len(locations), dtype=bool)
    for found in (
        pc.equal(locations, absolute),
        pc.starts_with(locations, absolute.rstrip("/") + "/"),
        pc.ends_with(locations, ending),
        pc.match_substring(locations, ending + "/"),
        pc.equal(locations, pattern),
    ):
        hits |= found.to_numpy(zero_copy_only=False)
    if any(mark in pattern for mark in "*?["):
        names = locations.to_pylist()
        for glob in (pattern, "*" + ending):
            matches = re.compile(fnmatch.translate(glob)).match
            hits |= np.array([matches(name) is not None for name in names], dtype=bool)
    return hits
