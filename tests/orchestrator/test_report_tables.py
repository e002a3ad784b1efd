"""The run's result in the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orchestrator import results
from orchestrator.report import load_report, print_summary, view
from orchestrator.report.tables import print_report
from tests.orchestrator.streams import METHODS, make_run


def printed(folder, width: int) -> str:
    out = io.StringIO()
    print_report(load_report(folder), Console(file=out, width=width))
    return out.getvalue()


def line(text: str, method: str) -> list[str]:
    return next(row.split() for row in text.splitlines() if row.split()[:1] == [method])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made-up", tasks=4)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_nothing_is_cut_off(run, width):
    text = printed(run, width)
    assert "…" not in text
    assert max(len(row) for row in text.splitlines()) <= width
    assert all(line(text, method) for method in METHODS)


def test_the_numbers_are_those_of_the_predictions(run):
    predictions = results.read_predictions(run)
    metrics = results.metrics_from_predictions(predictions)["lda"]
    steps = results.count(predictions)["lda"].seen_accuracy
    cells = line(printed(run, 200), "lda")
    assert cells[1:6] == [
        *(f"{100 * value:.1f}" for value in steps[:3]),
        f"{100 * metrics['final_accuracy']:.1f}",
        f"{100 * metrics['average_incremental_accuracy']:.1f}",
    ]


def test_steps_get_a_table_of_their_own_where_there_is_no_room(run):
    narrow, wide = printed(run, 80), printed(run, 200)
    assert "after each task" in narrow
    assert "after each task" not in wide


def test_many_steps_are_thinned_out_with_the_first_and_last_kept(tmp_path):
    make_run(tmp_path, tasks=30, per_task=4, methods=("lda", "oracle"))
    text = printed(tmp_path, 80)
    header = line(text, "method")
    assert header[1] == "1"
    assert header[-1] == "30"
    assert 8 <= len(header) <= 15


def test_bounds_and_order_dependence_are_said_beside_and_below(run):
    text = printed(run, 100)
    rows = [row.strip() for row in text.splitlines()]
    assert rows.index("upper bounds") < next(
        i for i, r in enumerate(rows) if r.startswith("oracle")
    )
    assert rows.index("test-order dependent") < next(
        i for i, r in enumerate(rows) if r.startswith("batch_entropy")
    )
    flat = " ".join(rows)
    assert "Upper bounds, never results: oracle, joint_linear" in flat
    assert "Dependent on the order of the test set" in flat


def test_a_summary_and_predictions_are_enough(run):
    predictions = results.read_predictions(run)
    out = io.StringIO()
    print_summary({"run": "r"}, predictions, Console(file=out, width=100))
    assert line(out.getvalue(), "lda")


def test_without_predictions_there_is_a_sentence():
    out = io.StringIO()
    print_summary({}, None, Console(file=out, width=100))
    assert "nothing to show" in out.getvalue()


def test_names_are_not_read_as_markup(tmp_path):
    rows = results.PredictionRows()
    rows.add(method="[red]x[/]", after_task=0, task=0, sample=["a"], label=[0], predicted=[0])
    results.write_chunk(tmp_path, 0, rows)
    assert "[red]x[/]" in printed(tmp_path, 100)


def test_no_forgetting_is_printed_without_a_sign(tmp_path):
    data = load_report(make_run(tmp_path / "run", tasks=3))
    for m in data.methods:
        m.metrics["forgetting"] = -1e-17
    out = io.StringIO()
    print_report(data, Console(file=out, width=120))
    assert "-0.0" not in out.getvalue()
    assert " 0.0" in out.getvalue()
    assert any(card["value"] == "0.0" for card in view.cards(data))
    assert "lost 0.0 points" in " ".join(view.headline(data))
