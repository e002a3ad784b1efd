"""A sweep's result as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.sweep import story
from orchestrator.sweep.results import SweepResult
from pipelines.search.ledger import TrialRecord

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MOST_ROWS = 40
_MOST_KEYS = 5


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print trials, what they say, and what mattered."""
    from rich.text import Text

    ordered = story.in_order(result)
    shown = ordered[:_MOST_ROWS]
    shown += [r for r in ordered[_MOST_ROWS:] if r.published or r is result.smallest]
    keys = list(dict.fromkeys(key for r in result.records if not r.published for key in r.settings))
    table = _table(result, shown, keys, apart=len(keys) <= _MOST_KEYS)
    unbounded = console.options.update(max_width=10_000)
    if console.measure(table, options=unbounded).minimum > console.width:  # a cell would be cut
        table = _table(result, shown, keys, apart=False)
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


def _table(
    result: SweepResult, shown: Sequence[TrialRecord], keys: Sequence[str], *, apart: bool
) -> Table:
    """A row a trial; its settings in columns of their own, or all in one."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    named = [", ".join(story.marks(record, result)) for record in shown]
    words = [word for names in named for word in names.split()]
    table = Table(box=box.SIMPLE_HEAD, padding=0, header_style="bold")
    table.add_column("trial", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("non-zero", justify="right", no_wrap=True)
    table.add_column(Text("of published"), justify="right", min_width=len("published"))
    for key in keys if apart else ["settings"]:
        title = key.rsplit(".", 1)[-1].replace("_", " ")
        width = max(len(word) for word in title.split())
        table.add_column(Text(title), justify="right" if apart else "left", min_width=width)
    table.add_column("", min_width=max(map(len, words), default=0))
    for record, names in zip(shown, named, strict=True):
        finished = record.status == "finished"
        settings = [
            story.short(record.settings[key], digits=2) if key in record.settings else ""
            for key in keys
        ]
        primary = record is result.best or record is result.smallest
        table.add_row(
            record.id,
            Text(story.accuracy_text(record) if finished else "-"),
            Text(f"{record.nonzero_parameters:,}" if finished else "-"),
            Text(story.against_published(record, result) or "-"),
            *(Text(cell) for cell in (settings if apart else [story.settings_line(record)])),
            Text(names),
            style="bold" if primary else ("" if finished else "dim"),
        )
    return table
