"""The report's figures.

Colours are Okabe and Ito's, told apart with any colour vision, and every line has its own marker and dash, so that
a black-and-white print can be read.  matplotlib is imported when a figure is drawn, and no display is needed.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.report.data import MethodResult, ReportData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#6B7280"
_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_DASHES: dict[str, Any] = {
    "router": "-",
    "baseline": (0, (6, 1.5, 1.5, 1.5)),
    "order": (0, (1, 1.2)),
    "lower bound": (0, (3, 3)),
    "upper bound": (0, (5, 3)),
}
_MOST_NUMBERS = 20  # tasks up to which a matrix has its numbers written in
_MOST_LINES = 14

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # names from data may hold a dollar sign
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9CA3AF",
    "axes.labelcolor": "#374151",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.8,
    "xtick.color": "#4B5563",
    "ytick.color": "#4B5563",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "luca",
    "figure.dpi": 100,
}
_PAGE_FONT = (
    "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Liberation Sans, sans-serif"
)


class Plot:
    """A figure and the name of its files; laid out once, saved as PNG and SVG."""

    def __init__(self, name: str, figure: Figure) -> None:
        self.name = name
        self._figure = figure
        layout = figure.get_layout_engine()
        if layout is not None:
            with _style():
                layout.execute(figure)
        figure.set_layout_engine(None)  # with one, each format would be drawn twice

    def png(self) -> bytes:
        """For files and for W&B: 180 dots an inch."""
        with _style():
            out = io.BytesIO()
            self._figure.savefig(out, format="png", dpi=180, facecolor="white")
            return out.getvalue()

    def svg(self) -> str:
        """For the page, in the page's own font."""
        with _style():
            out = io.StringIO()
            self._figure.savefig(
                out, format="svg", facecolor="white", metadata={"Date": None, "Creator": None}
            )
        text = out.getvalue()
        text = text[text.index("<svg") :]
        return re.sub(r"'?DejaVu Sans'?", _PAGE_FONT, text)


def draw(data: ReportData, *, only: Sequence[str] | None = None) -> Iterator[Plot]:
    """The figures that the run's data allows, one after the other; ``only`` names some of :data:`PLOTS`."""
    for name, make in PLOTS.items():
        if only is None or name in only:
            with _style():
                figure = make(data)
            if figure is not None:
                yield Plot(name, figure)


def accuracy_over_tasks(data: ReportData) -> Figure | None:
    """Accuracy over all classes seen, after each task, of every method."""
    if data.learned < 2:
        return None
    shown = sorted(data.methods, key=lambda m: -np.nan_to_num(m.counts.seen_accuracy[-1], nan=-1))
    shown = [m for m in shown if m.name == data.primary] + [
        m for m in shown if m.name != data.primary
    ][: _MOST_LINES - 1]
    rows = (len(shown) + 1) // 2
    figure, axes = _figure(8.2, 3.9 + 0.21 * rows)
    tasks = np.arange(1, data.learned + 1)
    colours = _line_colours(data)
    for number, m in enumerate(sorted(shown, key=lambda m: data.methods.index(m))):
        values = 100 * m.counts.seen_accuracy
        kind = m.method.kind
        if np.isfinite(values).sum() == 1 and kind == "upper bound" and len(values) > 1:
            level = values[np.isfinite(values)][0]
            axes.axhline(level, color=colours[m.name], linestyle=_DASHES[kind], linewidth=1)
            axes.plot(
                tasks[np.isfinite(values)],
                [level],
                color=colours[m.name],
                linestyle=_DASHES[kind],
                marker=_MARKERS[number % len(_MARKERS)],
                label=_label(m),
            )
            continue
        axes.plot(
            tasks,
            values,
            color=colours[m.name],
            linestyle=_DASHES[kind],
            linewidth=2.4 if m.name == data.primary else 1.3,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=6 if m.name == data.primary else 4.5,
            markevery=max(1, len(tasks) // 20),
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=3 if m.name == data.primary else 2,
            label=_label(m),
        )
    _task_axis(axes, data.learned)
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("accuracy over all classes seen (%)")
    axes.set_ylim(0, 102)
    figure.legend(loc="outside lower left", ncols=2, handlelength=3.2, columnspacing=1.6)
    return figure


def accuracy_matrix(data: ReportData, method: str | None = None) -> Figure | None:
    """Accuracy on each task after learning each task, of one method (default: the run's own)."""
    m = data.find(method or data.primary)
    if m is None or data.learned < 2:
        return None
    values = 100 * m.counts.accuracy
    return _heatmap(values, "on task", "after learning task", "accuracy (%)")


def forgetting(data: ReportData) -> Figure | None:
    """What each task has lost since its best, in points."""
    m = data.find(data.primary)
    if m is None or not np.isfinite(m.forgetting).any():
        return None
    figure, axes = _figure(8.2, 3.2)
    tasks = np.arange(1, data.learned + 1)
    axes.bar(tasks, 100 * m.forgetting, width=0.7, color=SKY, label=_label(m), zorder=2)
    others = [o for o in data.of_kind("router", "baseline") if o is not m][:3]
    colours = _line_colours(data)
    for number, other in enumerate(others, start=1):
        axes.plot(
            tasks,
            100 * other.forgetting,
            linestyle="none",
            marker=_MARKERS[number],
            markersize=5,
            color=colours[other.name],
            label=_label(other),
            zorder=3,
        )
    axes.axhline(0, color=GREY, linewidth=0.8)
    _task_axis(axes, data.learned)
    axes.set_xlabel("task")
    axes.set_ylabel("points lost since its best")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles[-1:] + handles[:-1], labels[-1:] + labels[:-1], loc="outside lower left", ncols=4
    )
    return figure


def routing_confusion(data: ReportData) -> Figure | None:
    """Where the samples of each task were sent, after the last task."""
    m = data.find(data.primary)
    if m is None or m.confusion is None or data.learned < 2:
        return None
    total = m.confusion.sum(axis=1, keepdims=True)
    share = np.divide(
        100.0 * m.confusion, total, out=np.full(m.confusion.shape, np.nan), where=total > 0
    )
    return _heatmap(share, "chosen task", "true task", "share of the task's samples (%)")


def reliability(data: ReportData) -> Figure | None:
    """Accuracy against confidence; on the diagonal a method is as often right as it says."""
    shown = [m for m in data.methods if m.reliability and m.method.kind in ("router", "baseline")]
    first = data.find(data.primary)
    shown = [m for m in [first] if m and m.reliability] + [m for m in shown if m is not first]
    if not shown:
        return None
    figure, axes = _figure(4.6, 4.6)
    axes.plot(
        [0, 1],
        [0, 1],
        color=GREY,
        linestyle=(0, (2, 2)),
        linewidth=1,
        label="as often right as said",
    )
    colours = _line_colours(data)
    for number, m in enumerate(shown[:4]):
        assert m.reliability is not None
        axes.plot(
            m.reliability.confidence,
            m.reliability.accuracy,
            marker=_MARKERS[number],
            markersize=5,
            linewidth=2 if m.name == data.primary else 1.2,
            linestyle=_DASHES[m.method.kind],
            color=colours[m.name],
            label=_label(m),
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("mean confidence in the bin")
    axes.set_ylabel("accuracy in the bin")
    axes.legend(loc="upper left")
    return figure


def modules(data: ReportData) -> Figure | None:
    """Stored and non-zero parameters of each task's module."""
    tasks = [task for task in data.tasks if task.stored]
    if not tasks:
        return None
    figure, axes = _figure(8.2, 3.0)
    x = [task.index + 1 for task in tasks]
    axes.bar(
        x,
        [(task.stored or 0) / 1000 for task in tasks],
        width=0.7,
        color="#E5E7EB",
        edgecolor="#9CA3AF",
        label="stored",
    )
    known = [task for task in tasks if task.nonzero is not None]
    axes.bar(
        [task.index + 1 for task in known],
        [(task.nonzero or 0) / 1000 for task in known],
        width=0.7,
        color=BLUE,
        label="not zero",
    )
    _task_axis(axes, max(x))
    axes.set_xlabel("task")
    axes.set_ylabel("thousand parameters")
    figure.legend(loc="outside lower left", ncols=2)
    return figure


def time_by_stage(data: ReportData) -> Figure | None:
    """Seconds spent in each stage; stages overlap, so they may add up to more than the run took."""
    stages = {
        name: value
        for name, value in data.stages.items()
        if isinstance(value, (int, float)) and name != "total"
    }
    if not stages:
        return None
    figure, axes = _figure(8.2, 0.7 + 0.38 * len(stages))
    names = list(stages)[::-1]
    bars = axes.barh(names, [stages[name] for name in names], height=0.62, color=BLUE)
    axes.bar_label(
        bars, fmt=lambda value: f"{value:,.1f} s", padding=4, fontsize=9, color="#374151"
    )
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.set_xlabel("seconds")
    return figure


PLOTS: dict[str, Callable[[ReportData], Figure | None]] = {
    "accuracy_over_tasks": accuracy_over_tasks,
    "accuracy_matrix": accuracy_matrix,
    "forgetting": forgetting,
    "routing_confusion": routing_confusion,
    "reliability": reliability,
    "modules": modules,
    "time_by_stage": time_by_stage,
}


# -- helpers ---------------------------------------------------------------------------------------------------


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in other scripts
        yield


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _label(m: MethodResult) -> str:
    """The legend's text; matplotlib leaves out what begins with an underscore."""
    return f" {m.method.title}" if m.name.startswith("_") else m.method.title


def _line_colours(data: ReportData) -> dict[str, str]:
    """A colour for each method: bounds black and grey, the run's own method blue."""
    colours: dict[str, str] = {}
    others = iter(_COLOURS[1:] * 10)
    bounds = iter((BLACK, GREY, "#9CA3AF") * 10)
    for m in data.methods:
        if m.name == data.primary:
            colours[m.name] = BLUE
        elif m.method.kind in ("upper bound", "lower bound"):
            colours[m.name] = next(bounds)
        else:
            colours[m.name] = next(others)
    return colours


def _task_axis(axes: Axes, tasks: int) -> None:
    axes.set_xlim(0.4, tasks + 0.6)
    axes.set_xticks(_some_tasks(tasks))
    axes.grid(axis="x", visible=False)


def _some_tasks(tasks: int) -> list[int]:
    """Numbers of tasks, counted from 1, that an axis has room for."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, tasks) if tasks <= 14 * step)
    return [task for task in range(1, tasks + 1) if task == 1 or task % step == 0]


def _heatmap(values: NDArray[np.float64], x: str, y: str, meaning: str) -> Figure:
    tasks = len(values)
    figure, axes = _figure(4.9, 4.1) if tasks <= 12 else _figure(7.6, 6.6)
    axes.grid(visible=False)
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=100, interpolation="nearest"
    )
    if tasks <= _MOST_NUMBERS:
        font = 8.5 if tasks <= 8 else 7.5
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                axes.text(
                    column,
                    row,
                    f"{value:.0f}" if value >= 0.5 else "·",
                    ha="center",
                    va="center",
                    fontsize=font,
                    color="white" if value > 55 else "#1F2937",
                )
    ticks = _some_tasks(tasks)
    axes.set_xticks([t - 1 for t in ticks], [str(t) for t in ticks])
    axes.set_yticks([t - 1 for t in ticks], [str(t) for t in ticks])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in axes.spines.values():
        side.set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02)
    bar.set_label(meaning)
    bar.outline.set_visible(False)
    return figure
