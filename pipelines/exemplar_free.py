"""Whether a bank could give a training sample away: the storage's audit, and what statistics of few samples reveal.

The storage's audit looks for arrays that grow with the number of samples.  Sums do not, yet a sum over one sample is
that sample's feature, and from the sum and the Gram matrix of two both follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.forking import learned_with, numbers, settings_of
from workers.modeling.luca_settings import LucaSettings, parameter_shapes
from workers.modeling.packing import packed_length
from workers.storage.bank_audit import AuditReport, Finding, audit

if TYPE_CHECKING:
    from workers.storage.bank_manifest import TaskRecord
    from workers.storage.bank_version import BankVersion

GUARD = (
    "it is no fault of the bank: sums hide nothing where there is next to nothing to add up. Guard the bank as you "
    "would these samples, learn such classes from three samples or more, or take them out (luca bank unlearn BANK "
    "--class NAME)"
)


def audit_version(version: BankVersion) -> AuditReport:
    """Every array of a version, and everything in it from which a sample's feature could be read.

    Raises:
        CorruptionError: an object cannot be read.
    """
    earlier = {n for task in version.tasks for n in numbers(learned_with(task))}
    width = version.backbone.get("width")
    ranks, shapes = set[int](), {}
    if isinstance(width, int):
        ranks = {width // n for n in earlier if n > 0}
        shapes = {task.id: _shapes(version, task, width) for task in version.tasks}
    report = audit(version, sizes=earlier | ranks, shapes=shapes)
    return replace(report, findings=(*report.findings, *revealing_sums(version)))


def _shapes(version: BankVersion, task: TaskRecord, width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a task's arrays by role and name, from its settings and its number of classes alone."""
    settings, classes = settings_of(version, task), len(task.classes)
    shapes: dict[str, tuple[int, ...]] = {
        "head/weight": (classes, width),
        "statistics/count": (classes,),
        "statistics/sum": (classes, width),
        "statistics/gram": (
            1 if _setting(settings, "granularity") == "task" else classes,
            packed_length(width),
        ),
    }
    if size := _setting(settings, "random_features"):
        shapes["statistics/projected.sum"] = (classes, size)
        shapes["statistics/projected.gram"] = (packed_length(size),)
    luca = LucaSettings.model_validate(settings.get("luca", {}))
    for name, shape in parameter_shapes(width, luca).items():
        shapes[f"module/{name}"] = shape
        shapes[f"module/{name}#mask"] = ((int(np.prod(shape)) + 7) // 8,)
        shapes[f"module/{name}#shape"] = (len(shape),)
    return shapes


def _setting(settings: dict[str, Any], name: str) -> Any:
    return settings.get("statistics", {}).get(name)


def revealing_sums(version: BankVersion) -> Iterator[Finding]:
    """Classes with so few samples in a task that their features follow from the sums."""
    for task in version.tasks:
        if "statistics" not in task.objects:
            continue
        arrays = version.arrays(task, "statistics")
        counts = arrays["count"].tolist() if "count" in arrays else []
        grams = len(arrays["gram"]) if "gram" in arrays else 0
        for position, (name, count) in enumerate(zip(task.classes, counts, strict=False)):
            where = f"{task.id}/statistics"
            # With the means known, a Gram matrix tells the spread around them: of one pair alone, that pair.
            summed = [counts[position]] if grams == len(counts) else counts
            pair = grams > 0 and sum(max(0, n - 1) for n in summed) == 1
            if count == 1:
                yield Finding(
                    f"{where}/sum",
                    f"class '{name}' has one training sample, so its sum is the feature of that sample",
                    GUARD,
                )
            elif count == 2 and pair:
                yield Finding(
                    f"{where}/gram",
                    f"class '{name}' has two training samples, and both their features follow from its sum and Gram "
                    "matrix",
                    GUARD,
                )
