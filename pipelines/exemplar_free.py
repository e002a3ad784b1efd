"""Whether a bank could give a training sample away: the storage's audit, and what statistics of few samples reveal.

The storage's audit looks for arrays that grow with the number of samples.  Sums do not, yet a sum over one sample is
that sample's feature, and from the sum and the Gram matrix of two both follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.forking import learned_with, numbers
from workers.storage.bank_audit import AuditReport, Finding, audit

if TYPE_CHECKING:
    from workers.storage.bank_version import BankVersion


def audit_version(version: BankVersion) -> AuditReport:
    """Every array of a version, and everything in it from which a sample's feature could be read.

    Raises:
        CorruptionError: an object cannot be read.
    """
    earlier = {n for task in version.tasks for n in numbers(learned_with(task))}
    width = version.backbone.get("width")
    ranks = {width // n for n in earlier if n > 0} if isinstance(width, int) else set()
    report = audit(version, sizes=earlier | ranks)
    return replace(report, findings=(*report.findings, *_revealing_sums(version)))


def _revealing_sums(version: BankVersion) -> Iterator[Finding]:
    for task in version.tasks:
        if "statistics" not in task.objects:
            continue
        arrays = version.arrays(task, "statistics")
        counts = arrays["count"].tolist() if "count" in arrays else []
        per_class = "gram" in arrays and len(arrays["gram"]) == len(counts)
        for name, count in zip(task.classes, counts, strict=False):
            where = f"{task.id}/statistics"
            if count == 1:
                yield Finding(
                    f"{where}/sum",
                    f"class '{name}' has one training sample, so its sum is the feature of that sample",
                )
            elif count == 2 and per_class:
                yield Finding(
                    f"{where}/gram",
                    f"class '{name}' has two training samples, and both their features follow from its sum and Gram "
                    "matrix",
                )
