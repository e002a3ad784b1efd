"""`luca bank verify` and `audit`: is every byte what was written, and could any of it give a sample away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.commands.bank.naming import open_bank, open_version
from orchestrator.commands.bank.output import console, print_json, shown, table
from orchestrator.commands.text import human_bytes, plural
from workers.storage.bank_verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.storage.bank_audit import TensorUse


def verify_command(storage: str, name: str, *, as_json: bool) -> bool:
    """Check every file of a bank and print what is wrong; whether nothing is."""
    report = verify(open_bank(storage, name))
    if as_json:
        print_json(report.to_json())
        return report.sound
    out = console()
    out.print(
        f"bank {report.bank}: {plural(report.versions, 'version')}, {plural(report.objects, 'object')}, "
        f"{human_bytes(report.bytes)}: "
        + ("sound" if report.sound else plural(len(report.problems), "problem")),
        style="bold",
    )
    if report.problems:
        rows = [(problem.file, problem.what, problem.remedy) for problem in report.problems]
        out.print(table(("file", "found", "what to do"), rows))
    for note in report.notes:
        out.print(f"note: {shown(note)}", soft_wrap=True)
    return report.sound


def audit_command(storage: str, name: str, *, as_json: bool) -> bool:
    """Print every array of a version and whatever could hold a sample; whether nothing could."""
    from pipelines.exemplar_free import audit_version

    report = audit_version(open_version(storage, name))
    if as_json:
        print_json(report.to_json())
        return report.clean
    out = console()
    out.print(f"bank {report.bank}, version {report.version}, digest {report.digest}", style="bold")
    out.print(
        table(("kind", "array", "type", "tasks", "shapes", "size"), _array_rows(report.tensors))
    )
    samples = sum(counts.get("info.samples", 0) for counts in report.samples.values())
    if report.clean:
        out.print(
            f"no sample and no feature of a sample: no array and no list grows with the "
            f"{plural(samples, 'training sample')}, "
            "and no class has so few that its sums would tell them",
            soft_wrap=True,
        )
        return True
    out.print(
        table(
            ("where", "what could give a sample away"), ((f.where, f.what) for f in report.findings)
        )
    )
    for remedy in dict.fromkeys(finding.remedy for finding in report.findings):
        out.print(f"what to do: {remedy}", soft_wrap=True)
    return False


def _array_rows(tensors: Iterable[TensorUse]) -> list[tuple[object, ...]]:
    """Arrays of one name over all tasks in one line, with the smallest and largest shape."""
    groups: dict[tuple[str, str, str], list[TensorUse]] = {}
    for use in tensors:
        groups.setdefault((use.role, use.name, use.dtype), []).append(use)
    rows: list[tuple[object, ...]] = []
    for (role, name, dtype), uses in groups.items():
        shapes = sorted({use.shape for use in uses})
        text = " to ".join(
            _shape(s) for s in (shapes if len(shapes) <= 2 else (shapes[0], shapes[-1]))
        )
        tasks = plural(len(uses), "task") if uses[0].task else "shared"
        rows.append((role, name, dtype, tasks, text, human_bytes(sum(use.size for use in uses))))
    return rows


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
