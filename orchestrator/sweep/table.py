"""A sweep's result as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.sweep import story
from orchestrator.sweep.results import SweepResult

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS = 40
_MOST_KEYS = 5


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print trials, what they say, and what mattered."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    keys = list(dict.fromkeys(key for r in result.records if not r.published for key in r.settings))
    table = Table(box=box.SIMPLE_HEAD, padding=0, header_style="bold")
    table.add_column("trial", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("non-zero", justify="right", no_wrap=True)
    table.add_column("of published", justify="right", min_width=9)
    apart = len(keys) <= _MOST_KEYS
    for key in keys if apart else ["settings"]:
        title = key.rsplit(".", 1)[-1].replace("_", " ")
        width = max(len(word) for word in title.split())
        table.add_column(Text(title), justify="right" if apart else "left", min_width=width)
    table.add_column("", min_width=max(len(name) for name in ("published", "smallest,")))
    ordered = story.in_order(result)
    shown = ordered[:_MOST_ROWS]
    shown += [r for r in ordered[_MOST_ROWS:] if r.published or r is result.smallest]
    for record in shown:
        finished = record.status == "finished"
        names = story.marks(record, result)
        settings = [
            story.short(record.settings[key], digits=2) if key in record.settings else ""
            for key in keys
        ]
        table.add_row(
            record.id,
            Text(story.accuracy_text(record) if finished else "-"),
            Text(f"{record.nonzero_parameters:,}" if finished else "-"),
            Text(story.against_published(record, result) or "-"),
            *(Text(cell) for cell in (settings if apart else [story.settings_line(record)])),
            Text(", ".join(names)),
            style="bold" if {"best", "smallest"} & set(names) else ("" if finished else "dim"),
        )
    console.print(table)
    for record in result.records:
        if record.error:
            console.print(Text(story.ending_line(record, result.tasks), style="yellow"))
    if len(ordered) > len(shown):
        console.print(Text(f"and {len(ordered) - len(shown)} more, in trials.csv", style="dim"))
    for line in story.sentences(result):
        console.print(Text(line))
    for title, shares in result.importance.items():
        parts = ", ".join(f"{key} {100 * share:.0f} %" for key, share in shares.items())
        console.print(Text(f"What explains {title}: {parts}"))
    console.print(Text(story.caption(result), style="dim"))
