"""What a sweep found, in sentences and in one line a trial: the same words in the terminal and on the page."""

from __future__ import annotations

from typing import Any

from orchestrator.sweep.results import SweepResult, accuracy, nonzero
from pipelines.search.ledger import TrialRecord
from workers.wording import fixed, plural


def percent(value: float | None) -> str:
    """An accuracy in per cent with one decimal."""
    return "-" if value is None else fixed(100 * value, 1)


def short(value: Any, *, digits: int = 3) -> str:
    """A setting's value for people."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list):
        return "+".join(short(item, digits=digits) for item in value)
    return str(value)


def settings_line(record: TrialRecord) -> str:
    """A trial's settings in one line, keys without their group."""
    if record.published:
        return "recipe tosca as published"
    return ", ".join(
        f"{key.rsplit('.', 1)[-1]} {short(value)}" for key, value in record.settings.items()
    )


def ending_line(record: TrialRecord, tasks: int) -> str:
    """How a trial ended."""
    settings = settings_line(record)
    if record.status in ("failed", "lost"):
        return f"{record.id} {record.status} ({settings}): {record.error}"
    if record.status == "stopped":
        return (
            f"{record.id} stopped after {record.tasks} of {tasks} tasks at "
            f"{percent(record.curve[-1])} % ({settings})"
        )
    return f"{record.id} {accuracy_text(record)} %, {nonzero(record):,} parameters ({settings})"


def accuracy_text(record: TrialRecord) -> str:
    """Accuracy in per cent, with its spread over repeats where there are several."""
    text = percent(record.validation_accuracy)
    return text if record.spread is None else f"{text} ± {percent(record.spread)}"


def marks(record: TrialRecord, result: SweepResult) -> list[str]:
    """What is special about a trial."""
    if record.status != "finished":
        after = f" after {record.tasks}" if record.status == "stopped" else ""
        return [*(["published"] if record.published else []), f"{record.status}{after}"]
    named = [
        ("published", record.published),
        ("best", record is result.best),
        ("smallest", record is result.smallest),
        ("pareto", record in result.pareto),
    ]
    return [name for name, applies in named if applies]


def against_published(record: TrialRecord, result: SweepResult) -> str | None:
    """Non-zero parameters as a share of the published recipe's."""
    yardstick = result.published
    if yardstick is None or record.status != "finished" or not nonzero(yardstick):
        return None
    share = 100 * nonzero(record) / nonzero(yardstick)
    return f"{share:,.0f} %" if share >= 100 else f"{share:.3g} %"


def in_order(result: SweepResult) -> list[TrialRecord]:
    """Finished trials, the most accurate first, then stopped ones by how far they came, then the rest."""
    ranks = {"finished": 0, "stopped": 1, "failed": 2}
    return sorted(
        result.records,
        key=lambda r: (
            ranks.get(r.status, 3),
            -(r.validation_accuracy or 0.0),
            r.nonzero_parameters or 0,
            r.number,
        ),
    )


def sentences(result: SweepResult) -> list[str]:
    """What a reader should take away."""
    best, smallest, yardstick = result.best, result.smallest, result.published
    if best is None or smallest is None:
        return ["No trial has finished."]
    points = f"{100 * result.tolerance:.2g} points"
    found = [
        f"Best: {best.id} with {accuracy_text(best)} % and {nonzero(best):,} non-zero parameters."
    ]
    if smallest is best:
        found.append(f"No smaller trial comes within {points} of it.")
    else:
        found.append(
            f"Smallest within {points} of it: {smallest.id} with {accuracy_text(smallest)} % and "
            f"{nonzero(smallest):,}{_times(best, smallest)}."
        )
    equal = result.smallest_as_published
    if yardstick is not None and equal is not None:
        line = (
            f"The published recipe: {yardstick.id} with {accuracy_text(yardstick)} % and "
            f"{nonzero(yardstick):,}"
        )
        if equal is not yardstick:
            line += (
                f"; at no more than {points} less, {equal.id} needs {nonzero(equal):,}"
                f"{_times(yardstick, equal)}"
            )
        found.append(f"{line}.")
    else:
        found.append("The published recipe did not finish, so there is no yardstick.")
    return found


def caption(result: SweepResult) -> str:
    """What the numbers are."""
    router = result.about.get("router", "?")
    samples = result.about.get("validation samples", 0)
    repeats = result.about.get("repeats", 1)
    text = (
        f"Accuracies in % on {plural(samples, 'validation sample')} of all classes, router {router}; test samples "
        "play no part."
    )
    if result.best is not None and samples:
        share = accuracy(result.best)
        error = 100 * (share * (1 - share) / samples) ** 0.5
        text += (
            f" Standard error of one accuracy: {error:.1f} points; trials share their samples, so differences "
            "between them are surer than that."
        )
    if repeats > 1:
        text += f" Mean and sample standard deviation over {repeats} repeats."
    return text


def _times(more: TrialRecord, fewer: TrialRecord) -> str:
    if not nonzero(fewer) or accuracy(more) < 0:
        return ""
    factor = nonzero(more) / nonzero(fewer)
    return f" ({factor:.3g} times fewer)" if factor > 1.005 else ""
