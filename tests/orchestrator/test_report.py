"""The report of a run, built from its files alone."""

from __future__ import annotations

import csv
import json
import re
import time
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as pq
import pytest

from orchestrator import results
from orchestrator.report import build_report, load_report, view
from orchestrator.report.live import LiveReport
from orchestrator.report.methods import describe
from orchestrator.report.plots import PLOTS, draw
from orchestrator.tracking import (
    JsonlTracker,
    Notice,
    RunStarted,
    TaskEvaluated,
    TaskLearned,
    TrackingSettings,
    build_trackers,
)
from tests.orchestrator.streams import METHODS, make_run
from workers.errors import CorruptionError, StorageError


class Page(HTMLParser):
    """A page's tags, and its text by tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    def row(self, start: str) -> list[str]:
        return next(row for row in self.rows if row and row[0].startswith(start))


def page_of(run_dir) -> Page:
    return Page(build_report(run_dir, final=False).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of four tasks and its report."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "made-up", tasks=4)
    build_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(run):
    return Page((run / "report.html").read_text(encoding="utf-8"))


def test_the_report_leaves_page_figures_and_tables(run):
    names = {path.name for path in run.iterdir()}
    assert {"report.html", "metrics.parquet", "metrics.csv", "tasks.csv"} <= names
    assert {"accuracy_matrix.csv", "routing_confusion.csv", "reliability.csv"} <= names
    assert {f"{name}.png" for name in PLOTS} <= names
    assert not [name for name in names if name.endswith(".tmp")]


def test_figures_are_pngs_with_something_in_them(run):
    from PIL import Image

    for name in PLOTS:
        pixels = np.asarray(Image.open(run / f"{name}.png").convert("L"))
        assert pixels.shape[1] >= 800
        assert 0.01 < (pixels < 250).mean() < 0.9


def test_the_page_holds_everything_it_needs(page):
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "base")
        if tag == "link":
            assert attributes == {"rel": "icon", "href": "data:,"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "srcset", "data"):
                assert (value or "").startswith("data:")
    assert sum(tag == "img" for tag, _ in page.tags) == len(PLOTS)


def test_the_page_forbids_scripts_and_requests(page):
    policies = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_every_link_leads_to_a_file_beside_the_page(run, page):
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert len(links) > 10
    assert all((run / link).is_file() for link in links)


def test_every_figure_is_described_in_words(page):
    assert all(len(a["alt"]) > 40 for tag, a in page.tags if tag == "img")


def test_printed_numbers_are_those_of_the_predictions(run, page):
    metrics = results.metrics_from_predictions(results.read_predictions(run))
    for method in METHODS:
        row = page.row(method)
        assert row[1] == f"{100 * metrics[method]['final_accuracy']:.1f}"
        assert method in row[0]
    assert page.row("lda")[2] == f"{100 * metrics['lda']['average_incremental_accuracy']:.1f}"
    assert page.row("lda")[5] == f"{100 * metrics['lda']['gap_to_joint']:.1f}"


def test_bounds_and_order_dependence_are_marked_wherever_a_method_is_printed(page):
    marked = {"oracle": "upper bound", "joint_linear": "upper bound"}
    marked["batch_entropy"] = "test-order dependent"
    for method, mark in marked.items():
        rows = [row for row in page.rows if row and row[0].startswith(method)]
        assert len(rows) == 3  # main table, more metrics, steps
        assert all(mark in row[0] for row in rows)


def test_bounds_and_order_dependence_are_marked_in_figures(run):
    data = load_report(run)
    (plot,) = draw(data, only=["accuracy_over_tasks"])
    svg = plot.svg()
    for label in ("oracle (upper bound)", "batch_entropy (test-order dependent)"):
        assert label in svg


def test_no_bound_and_no_order_dependent_method_stands_for_the_run(tmp_path):
    make_run(tmp_path, tasks=2, methods=("oracle", "batch_entropy", "entropy", "joint_linear"))
    assert load_report(tmp_path).primary == "entropy"


def test_the_run_is_represented_by_the_router_named_first_not_by_the_best(tmp_path):
    make_run(tmp_path, tasks=2)
    log = JsonlTracker(tmp_path / "events.jsonl")
    experiment = {"evaluation": {"routers": ["oracle", "entropy", "lda"]}}
    log.handle(RunStarted("r", "n", "b", "s", [], experiment))
    log.close()
    assert load_report(tmp_path).primary == "entropy"


def test_names_from_data_are_escaped(tmp_path):
    make_run(tmp_path, tasks=2, hostile=True)
    page = page_of(tmp_path)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;class 0" in text


@pytest.mark.parametrize("name", ["$x^", "_hidden", "50% {off}", "名前", "a\\b", "\udcff", "&amp;"])
def test_any_name_can_be_drawn_and_printed(tmp_path, name):
    method = name.encode("utf-8", errors="backslashreplace").decode()
    for after in range(2):
        rows = results.PredictionRows()
        for on in range(after + 1):
            rows.add(
                method=method, after_task=after, task=on, sample=["s"], label=[on], predicted=[on]
            )
        results.write_chunk(tmp_path, after, rows)
    log = JsonlTracker(tmp_path / "events.jsonl")
    tasks = [{"name": name, "classes": [name, name], "train": 1, "test": 1}]
    log.handle(RunStarted("r", name, "b", "s", tasks, {}))
    log.close()
    assert page_of(tmp_path).row(method)[1] == "100.0"


def test_spreadsheets_get_no_formula_from_data(tmp_path):
    make_run(tmp_path, tasks=1)
    log = JsonlTracker(tmp_path / "events.jsonl")
    log.handle(RunStarted("r", "n", "b", "s", [{"name": "=cmd|' /C calc'!A0"}], {}))
    log.close()
    build_report(tmp_path)
    rows = list(csv.DictReader((tmp_path / "tasks.csv").open(encoding="utf-8")))
    assert rows[0]["name"] == "'=cmd|' /C calc'!A0"


def test_csv_and_parquet_hold_unrounded_numbers(run):
    metrics = results.metrics_from_predictions(results.read_predictions(run))
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, value in metrics[row["method"]].items():
                assert float(row[name]) == value
    matrix = results.accuracy_matrix(results.read_predictions(run), "lda")
    with (run / "accuracy_matrix.csv").open(encoding="utf-8") as file:
        mine = [row for row in csv.DictReader(file) if row["method"] == "lda"]
    assert len(mine) == 10
    assert all(
        float(r["accuracy"]) == matrix[int(r["after_task"]), int(r["on_task"])] for r in mine
    )
    assert pq.read_table(run / "metrics.parquet").schema.equals(results.METRIC_SCHEMA)


def test_a_single_task_has_a_report(tmp_path):
    make_run(tmp_path, tasks=1)
    page = page_of(tmp_path)
    header = next(row for row in page.rows if row and row[0] == "method")
    assert not [title for title in header if "forgetting" in title or "task chosen" in title]
    assert "1 task " in (tmp_path / "report.html").read_text()


def test_many_tasks_and_classes_have_a_report_without_crowded_numbers(tmp_path):
    make_run(tmp_path, tasks=40, classes=25, per_task=25, methods=("lda", "oracle"))
    data = load_report(tmp_path)
    assert data.classes == 1000
    (plot,) = draw(data, only=["accuracy_matrix"])
    assert plot.svg().count("<text") < 60
    build_report(tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


def test_a_run_that_goes_on_has_a_short_report(tmp_path):
    make_run(tmp_path, tasks=4, upto=2)
    path = build_report(tmp_path, final=False)
    assert not list(tmp_path.glob("*.png"))
    text = path.read_text()
    assert "in progress" in text
    assert "After 2 tasks of 4 with 4 classes" in text


def test_before_the_first_evaluation_the_report_says_so(tmp_path):
    log = JsonlTracker(tmp_path / "events.jsonl")
    log.handle(RunStarted("r", "n", "b", "s", [{"name": "t", "classes": 2}], {}))
    log.close()
    assert "No task has been evaluated yet." in build_report(tmp_path, final=False).read_text()


def test_predictions_alone_make_a_report(tmp_path):
    make_run(tmp_path, tasks=2)
    (tmp_path / "events.jsonl").unlink()
    (tmp_path / "experiment.yaml").unlink()
    assert page_of(tmp_path).row("lda")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(StorageError, match="holds no run"):
        build_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_log_becomes_a_warning(tmp_path):
    make_run(tmp_path, tasks=2)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"garbage\n" + path.read_bytes())
    assert any("line 1 is not JSON" in warning for warning in load_report(tmp_path).warnings)


def test_damaged_predictions_are_an_error_that_names_the_file(tmp_path):
    make_run(tmp_path, tasks=2)
    (tmp_path / "predictions/after-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptionError, match=r"after-00001\.parquet"):
        build_report(tmp_path)


def test_warnings_and_skipped_samples_are_listed_first(tmp_path):
    make_run(tmp_path, tasks=2)
    log = JsonlTracker(tmp_path / "events.jsonl")
    log.handle(Notice("warning", "the disk is nearly full"))
    log.handle(Notice("info", "all is well"))
    log.close()
    text = build_report(tmp_path, final=False).read_text()
    assert text.index("the disk is nearly full") < text.index("<h2>Results</h2>")
    assert "all is well" not in text


def test_a_continued_run_keeps_what_learning_took_the_first_time(tmp_path):
    make_run(tmp_path, tasks=2)
    log = JsonlTracker(tmp_path / "events.jsonl")
    log.handle(RunStarted("r", "n", "b", "s", [{"name": "t0"}, {"name": "t1"}], {}, True))
    log.handle(TaskLearned(0, "t0", 0.0, 40, [], 149_808, 41_000, cached=True))
    log.close()
    data = load_report(tmp_path)
    assert data.tasks[0].seconds == 1.2
    assert data.status == "in progress"
    assert data.stages == {}


def test_a_summary_can_say_what_its_methods_are(tmp_path):
    make_run(tmp_path, tasks=2)
    results.write_summary(
        tmp_path, {"methods": {"lda": {"kind": "upper bound", "note": "knows <all>"}}}
    )
    data = load_report(tmp_path)
    assert data.find("lda").method.kind == "upper bound"
    assert data.primary == "entropy"


def test_the_live_report_is_rebuilt_but_takes_little_of_the_time(tmp_path, monkeypatch):
    make_run(tmp_path, tasks=4, upto=2)
    now, built = [0.0], []

    def build(run_dir, *, final):
        built.append((now[0], final))
        now[0] += 2.0

    monkeypatch.setattr("orchestrator.report.files.build_report", build)
    live = LiveReport(tmp_path, clock=lambda: now[0])
    for _ in range(100):
        live.handle(TaskEvaluated(0, 1, {}, 0.1))
        now[0] += 1.0
    assert [moment for moment, _ in built] == [0, 40, 80]
    assert not any(final for _, final in built)


def test_the_live_report_leaves_the_last_task_to_the_final_one(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        "orchestrator.report.files.build_report", lambda *_args, **_options: built.append(1)
    )
    live = LiveReport(tmp_path, at_least=0.0, clock=lambda: 0.0)
    live.handle(RunStarted("r", "r", "b", "s", [{"name": "one"}, {"name": "two"}], {}))
    live.handle(TaskEvaluated(1, 2, {}, 0.1))
    assert not built
    live.handle(TaskEvaluated(0, 1, {}, 0.1))
    assert built


def test_the_live_report_is_there_after_the_first_task(tmp_path):
    make_run(tmp_path, tasks=4, upto=1)
    settings = TrackingSettings(console="quiet", wandb={"mode": "disabled"})
    with build_trackers(settings, tmp_path) as trackers:
        trackers.handle(TaskEvaluated(0, 1, {}, 0.1))
    assert "After 1 task of 4" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lda", "router"),
        ("lda_product", "router"),
        ("batch_entropy", "order"),
        ("batch_entropy_shuffled", "order"),
        ("oracle", "upper bound"),
        ("joint_luca", "upper bound"),
        ("simplecil", "baseline"),
        ("sequential_linear", "lower bound"),
        ("something_new", "router"),
    ],
)
def test_kinds_of_methods(name, kind):
    assert describe(name).kind == kind


def test_the_oracle_is_a_result_where_the_scenario_gives_the_task():
    assert describe("oracle", scenario="task_incremental").kind == "router"


def test_lines_differ_in_more_than_colour(run):
    (plot,) = draw(load_report(run), only=["accuracy_over_tasks"])
    axes = plot._figure.axes[0]
    looks = {(str(line.get_linestyle()), line.get_marker()) for line in axes.get_lines()}
    assert len(looks) >= len(METHODS)


def test_the_headline_says_what_happened(run):
    first, second, third = view.headline(load_report(run))
    assert re.match(r"After 4 tasks with 8 classes, \d+\.\d % of the 80 test samples", first)
    assert "Averaged over the steps" in second
    assert "both are upper bounds" in third


def test_the_report_is_the_same_when_built_again(tmp_path):
    run = make_run(tmp_path, tasks=2)
    first = build_report(run, final=False).read_bytes()
    assert build_report(run, final=False).read_bytes() == first


def test_the_yaml_of_the_settings_is_shown(tmp_path):
    make_run(tmp_path, tasks=1)
    (tmp_path / "experiment.yaml").write_text("name: '<b>bold</b>'\n")
    text = build_report(tmp_path, final=False).read_text()
    assert "name: &#39;&lt;b&gt;bold&lt;/b&gt;&#39;" in text


def test_the_summary_wins_over_the_log(tmp_path):
    make_run(tmp_path, tasks=1)
    results.write_summary(tmp_path, {"seconds_by_stage": {"features": 7.5}, "version": 12})
    data = load_report(tmp_path)
    assert data.stages == {"features": 7.5}
    assert data.version == 12
    assert json.loads((tmp_path / "summary.json").read_text())["version"] == 12


def test_a_summary_from_before_the_last_start_says_nothing_of_how_the_run_stands(tmp_path):
    make_run(tmp_path, tasks=2)
    results.write_summary(tmp_path, {"version": 99, "primary": "entropy"})
    log = JsonlTracker(tmp_path / "events.jsonl")
    later = time.time() + 60
    log.handle(RunStarted("r", "n", "b", "s", [{"name": "t"}] * 2, {}, True, time=later))
    log.close()
    data = load_report(tmp_path)
    assert data.version == 2
    assert data.primary == "entropy"
    assert data.status == "in progress"


def test_the_report_written_just_before_the_end_says_finished(tmp_path):
    make_run(tmp_path, tasks=2)
    path = tmp_path / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "run_finished" not in line))
    assert load_report(tmp_path).status == "in progress"
    results.write_summary(tmp_path, {"version": 2})
    assert load_report(tmp_path).status == "finished"
