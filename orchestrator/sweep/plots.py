"""A sweep's figures: accuracy against size, what mattered, and how trials went.

matplotlib is imported when a figure is drawn, and no display is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.report.plots import BLUE, GREEN, GREY, ORANGE, VERMILLION, Plot
from orchestrator.sweep.results import SweepResult, accuracy, nonzero
from pipelines.search.ledger import TrialRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9CA3AF",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "luca",
}


def draw_sweep(result: SweepResult) -> Iterator[Plot]:
    """The figures that the result allows, one after the other."""
    for name, make in (
        ("pareto", pareto_plot),
        ("importance", importance_plot),
        ("trials", curves_plot),
    ):
        with _style():
            figure = make(result)
        if figure is not None:
            yield Plot(name, figure)


def pareto_plot(result: SweepResult) -> Figure | None:
    """Validation accuracy against non-zero parameters, the front joined, the published recipe as a level."""
    if not result.finished:
        return None
    figure, axes = _figure(7.4, 4.4)
    front = result.pareto
    others = [r for r in result.finished if r not in front and not r.published]
    _points(axes, others, GREY, "o", "other trials")
    _points(axes, [r for r in front if not r.published], BLUE, "o", "Pareto front")
    steps = sorted(front, key=nonzero)
    axes.plot(
        [max(1, nonzero(r)) for r in steps],
        [100 * accuracy(r) for r in steps],
        color=BLUE,
        linewidth=1.4,
        drawstyle="steps-post",
        zorder=2,
    )
    yardstick = result.published
    if yardstick is not None:
        level = 100 * accuracy(yardstick)
        axes.axhspan(
            level - 100 * result.tolerance, level, color=VERMILLION, alpha=0.12, linewidth=0
        )
        axes.axhline(level, color=VERMILLION, linewidth=1, linestyle=(0, (4, 3)))
        _points(axes, [yardstick], VERMILLION, "D", "published recipe")
    if result.smallest is not None:
        for record, name in ((result.best, "best"), (result.smallest, "smallest")):
            if record is not None and (name == "best" or record is not result.best):
                axes.annotate(
                    f"{name} {record.id}",
                    (max(1, nonzero(record)), 100 * accuracy(record)),
                    xytext=(0, 9),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8.5,
                )
    _logarithmic(axes, [max(1, nonzero(r)) for r in result.finished])
    axes.margins(x=0.12, y=0.18)
    axes.set_xlabel("non-zero parameters of all modules")
    axes.set_ylabel("validation accuracy (%)")
    figure.legend(loc="outside lower left", ncols=3)
    return figure


def importance_plot(result: SweepResult) -> Figure | None:
    """Shares of the variation that each setting explains, side by side for accuracy and parameters."""
    if not result.importance:
        return None
    keys = list(dict.fromkeys(key for shares in result.importance.values() for key in shares))
    figure, axes = _figure(7.4, 1.5 + 0.42 * len(keys))
    height = 0.8 / len(result.importance)
    for number, (title, shares) in enumerate(result.importance.items()):
        positions = [at + (number + 0.5) * height - 0.4 for at in range(len(keys))]
        values = [100 * shares.get(key, 0.0) for key in keys]
        bars = axes.barh(
            positions,
            values,
            height=0.9 * height,
            color=(BLUE, ORANGE)[number % 2],
            hatch=("", "//")[number % 2],
            edgecolor="white",
            label=title,
        )
        axes.bar_label(bars, labels=[f"{value:.0f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(keys)), keys)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 108)
    axes.set_xlabel("share of the variation explained (%)")
    figure.legend(loc="outside lower left", ncols=2)
    return figure


def curves_plot(result: SweepResult) -> Figure | None:
    """Accuracy over the tasks seen as each trial went on; where a line ends early, the trial was stopped."""
    shown = [r for r in result.records if len(r.curve) > 1]
    if result.tasks < 2 or not shown:
        return None
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(7.4, 3.8)
    labelled: set[str] = set()
    for record in sorted(
        shown, key=lambda r: (r.published, r is result.smallest, r is result.best)
    ):
        name, colour, width, dash = _role(record, result)
        axes.plot(
            range(1, len(record.curve) + 1),
            [100 * value for value in record.curve],
            color=colour,
            linewidth=width,
            linestyle=dash,
            marker="x" if record.status == "stopped" else None,
            markevery=[len(record.curve) - 1] if record.status == "stopped" else None,
            label=None if name in labelled else name,
        )
        labelled.add(name)
    axes.set_xlim(0.8, result.tasks + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("validation accuracy over the tasks seen (%)")
    figure.legend(loc="outside lower left", ncols=3)
    return figure


def _role(record: TrialRecord, result: SweepResult) -> tuple[str, str, float, Any]:
    if record.published:
        return "published recipe", VERMILLION, 2.2, (0, (4, 2))
    if record is result.best:
        return "best", BLUE, 2.2, "-"
    if record is result.smallest:
        return "smallest", GREEN, 2.2, (0, (6, 1.5, 1.5, 1.5))
    if record.status == "stopped":
        return "stopped early", GREY, 0.9, (0, (1, 1.2))
    return "other trials", GREY, 0.9, "-"


def _points(axes: Axes, records: list[TrialRecord], colour: str, marker: str, label: str) -> None:
    if not records:
        return
    axes.errorbar(
        [max(1, nonzero(r)) for r in records],
        [100 * accuracy(r) for r in records],
        yerr=[100 * (r.spread or 0.0) for r in records]
        if any(r.spread is not None for r in records)
        else None,
        fmt=marker,
        color=colour,
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1,
        label=label,
        zorder=3,
    )


def _logarithmic(axes: Axes, values: list[int]) -> None:
    """A logarithmic x axis whose ticks are written out, enough of them also where the values lie close."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    wide = max(values) >= 100 * min(values)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield
