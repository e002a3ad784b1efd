"""A sweep's result as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.sweep import story
from orchestrator.sweep.results import SweepResult

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS = 40


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print trials, what they say, and what mattered."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("trial", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("non-zero", justify="right", no_wrap=True)
    table.add_column("of published", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("settings")
    ordered = story.in_order(result)
    for record in ordered[:_MOST_ROWS]:
        finished = record.status == "finished"
        names = story.marks(record, result)
        special = {"best", "smallest"} & set(names)
        table.add_row(
            record.id,
            Text(story.accuracy_text(record) if finished else "-"),
            Text(f"{record.nonzero_parameters:,}" if finished else "-"),
            Text(story.against_published(record, result) or "-"),
            Text(", ".join(names)),
            Text(record.error if record.error else story.settings_line(record)),
            style="bold" if special else ("" if finished else "dim"),
        )
    console.print(table)
    if len(ordered) > _MOST_ROWS:
        console.print(Text(f"and {len(ordered) - _MOST_ROWS} more", style="dim"))
    for line in story.sentences(result):
        console.print(Text(line))
    for title, shares in result.importance.items():
        parts = ", ".join(f"{key} {100 * share:.0f} %" for key, share in shares.items())
        console.print(Text(f"What explains {title}: {parts}"))
    console.print(Text(story.caption(result), style="dim"))
