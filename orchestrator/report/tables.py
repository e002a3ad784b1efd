"""The run's result as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.report import view
from orchestrator.report.data import ReportData, data_from
from orchestrator.report.view import Column

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

_TERMINAL_METRICS = (
    "final_accuracy",
    "average_incremental_accuracy",
    "forgetting",
    "routing_accuracy",
    "gap_to_joint",
)
_STYLES = {"primary": "bold", "bound": "dim italic", "order": "yellow"}
_STEP_WIDTH = 8
_METRIC_WIDTH = 13


def print_summary(
    summary: Mapping[str, Any], predictions: pa.Table | None, console: Console
) -> None:
    """Prints the final table of a run and what its rows mean.

    Args:
        summary: as in ``summary.json``.
        predictions: the run's predictions, or None when there are none.
        console: where to; one that writes to standard error keeps standard output for programs.
    """
    print_report(data_from(summary, predictions), console)


def print_report(data: ReportData, console: Console) -> None:
    """Prints the tables of a run that was read from its files."""
    from rich.text import Text

    if not data.methods:
        console.print(Text("No task has been evaluated, so there is nothing to show."))
        return
    for table in tables(data, console.width):
        console.print(table)
    for line in captions(data):
        console.print(Text(line, style="dim"))


def tables(data: ReportData, width: int) -> list[Table]:
    """Methods x (accuracy after each task, final, average incremental, routing, ...), in ``width`` characters.

    What does not fit beside each other comes as two tables, and of many tasks some are shown.
    """
    metrics = [c for c in view.columns(data) if c.metric in _TERMINAL_METRICS]
    used = sum(max((len(text) for text in texts), default=0) + 2 for texts in _texts(data))
    room = max(1, (width - used) // _STEP_WIDTH)
    beside = max(0, (width - used - _METRIC_WIDTH * len(metrics)) // _STEP_WIDTH)
    earlier = list(range(data.learned - 1))  # the last step is the final accuracy
    if len(earlier) <= beside:
        return [_table(data, earlier, metrics, "")]
    steps = _some(data.learned, room)
    return [
        _table(data, steps, [], "Accuracy over all classes seen, after each task (%)"),
        _table(data, [], metrics, "After the last task"),
    ]


def _texts(data: ReportData) -> tuple[list[str], list[str]]:
    return [m.name for m in data.methods], [m.method.mark for m in data.methods]


def _some(steps: int, room: int) -> list[int]:
    """At most ``room`` of the steps, evenly spread, with the first and the last."""
    if steps <= room:
        return list(range(steps))
    if room < 2:
        return [steps - 1]
    return sorted({round(i * (steps - 1) / (room - 1)) for i in range(room)})


def _table(data: ReportData, steps: Sequence[int], metrics: list[Column], title: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("method", no_wrap=True)
    for step in steps:
        label = f"after {step + 1}" if metrics and step == steps[0] else str(step + 1)
        table.add_column(label, justify="right", no_wrap=True)
    for column in metrics:
        table.add_column(Text(f"{column.title} ({column.unit})"), justify="right")
    table.add_column("", no_wrap=True)
    by_name = {row.name: row for row in view.step_rows(data)}
    for group in view.groups(data, metrics):
        for row in group.rows:
            cells = [*(by_name[row.name].cells[step] for step in steps), *row.cells]
            table.add_row(
                Text(row.name),
                *(Text("–" if cell is None else cell) for cell in cells),
                Text(row.mark),
                style=_STYLES.get(row.css),
            )
        table.add_section()
    return table


def captions(data: ReportData) -> list[str]:
    """What a reader must know of the rows."""
    lines = [
        f"Accuracies in % on the {data.test_samples:,} test samples of all classes seen; per sample unless marked."
    ]
    bounds = [m.name for m in data.of_kind("upper bound")]
    if bounds:
        lines.append(
            f"Upper bounds, never results: {', '.join(bounds)} (told the task, or all data at once)."
        )
    ordered = [m.name for m in data.of_kind("order")]
    if ordered:
        lines.append(
            f"Dependent on the order of the test set, only for comparison with published figures: "
            f"{', '.join(ordered)}."
        )
    return lines
