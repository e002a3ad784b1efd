"""The run's result as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.report import view
from orchestrator.report.data import ReportData, data_from
from orchestrator.report.view import Column
from workers.wording import plural

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
_TITLES = {
    "router": "LuCA, per sample",
    "baseline": "baselines",
    "order": "test-order dependent",
    "lower bound": "lower bound",
    "upper bound": "upper bounds",
}


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
    for title, table in tables(data, console.width):
        if title:
            console.print(Text(title, style="bold"))
        console.print(table)
    for line in captions(data):
        console.print(Text(line, style="dim"))


def tables(data: ReportData, width: int) -> list[tuple[str, Table]]:
    """Titles and tables: methods x (accuracy after each task, final, average incremental, routing, ...), in ``width`` characters.

    What does not fit beside each other comes as two tables, and of many tasks some are shown.
    """
    metrics = [c for c in view.columns(data) if c.metric in _TERMINAL_METRICS]
    rows = view.step_rows(data)
    steps = [
        1 + max(len(str(step + 1)), *(len(row.cells[step] or "-") for row in rows))
        for step in range(data.learned)
    ]
    names = [*(f" {row.name}" for row in rows), *(_TITLES[m.method.kind] for m in data.methods)]
    room = width - 2 - max(len(name) for name in names)
    # The last step is the final accuracy; "after" is over the first.
    if sum(steps[:-1]) + 6 + sum(1 + _widest_word(column) for column in metrics) <= room:
        return [("", _table(data, range(data.learned - 1), metrics))]
    some = _some(steps, room)
    return [
        ("Accuracy over all classes seen, after each task (%)", _table(data, some, [])),
        ("After the last task", _table(data, [], metrics)),
    ]


def _some(widths: Sequence[int], room: int) -> list[int]:
    """As many of the steps as there is room for, evenly spread, with the first and the last."""
    last = len(widths) - 1
    for number in range(len(widths), 1, -1):
        steps = sorted({round(i * last / (number - 1)) for i in range(number)})
        if sum(widths[step] for step in steps) <= room:
            return steps
    return [last]


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})"


def _widest_word(column: Column) -> int:
    return max(len(word) for word in _heading(column).split())


def _table(data: ReportData, steps: Sequence[int], metrics: list[Column]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=0, header_style="bold")
    table.add_column("method", no_wrap=True)
    for step in steps:
        label = f"after {step + 1}" if metrics and step == steps[0] else str(step + 1)
        table.add_column(label, justify="right", no_wrap=True)
    for column in metrics:
        table.add_column(Text(_heading(column)), justify="right", min_width=_widest_word(column))
    by_name = {row.name: row for row in view.step_rows(data)}
    for group in view.groups(data, metrics):
        table.add_row(Text(_TITLES[group.kind], style="underline"))
        for row in group.rows:
            cells = [*(by_name[row.name].cells[step] for step in steps), *row.cells]
            table.add_row(
                Text(f" {row.name}"),
                *(Text("-" if cell is None else cell) for cell in cells),
                style=_STYLES.get(row.css),
            )
    return table


def captions(data: ReportData) -> list[str]:
    """What a reader must know of the rows."""
    lines = [
        f"Accuracies in % on {plural(data.test_samples, 'test sample')} of all classes seen; per sample "
        "unless marked."
    ]
    if data.tasks_given:
        lines.append(
            "The stream gives the task of every sample: oracle and baselines decide among the classes of that task; "
            "the other routers are not told it."
        )
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
