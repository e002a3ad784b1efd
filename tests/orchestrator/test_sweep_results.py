"""What a sweep found: front, best, smallest, importance, tables, page."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.experiment_files import load_experiment
from orchestrator.sweep.files import write_sweep
from orchestrator.sweep.opening import Sweep
from orchestrator.sweep.results import SweepResult, importances, pareto
from orchestrator.sweep.story import against_published, sentences
from orchestrator.sweep.table import print_sweep
from pipelines.search.ledger import TrialRecord
from pipelines.search.settings import Range
from workers.errors import SettingsError
from workers.storage.filesystem import Storage


def trial(number: int, accuracy: float, nonzero: int, **more: Any) -> TrialRecord:
    return TrialRecord(
        **{
            "number": number,
            "settings": {"learning.l1": number / 1000, "luca.ratio": 8},
            "digest": str(number),
            "status": "finished",
            "tasks": 4,
            "validation_accuracy": accuracy,
            "accuracies": (accuracy,),
            "nonzero_parameters": nonzero,
            "stored_parameters": 500,
            "curve": (1.0, 0.9, accuracy, accuracy),
            "sizes": (1.0, 2.0, 3.0, float(nonzero)),
            "seconds": 1.5,
            **more,
        }
    )


PUBLISHED = trial(0, 0.800, 400, published=True, settings={"recipe": "tosca"})
STOPPED = trial(5, 0.2, 1, status="stopped", tasks=2, curve=(1.0, 0.9), sizes=(1.0, 1.0))
FAILED = TrialRecord(
    number=6,
    settings={"learning.l1": 0.006, "luca.ratio": 8},
    digest="6",
    status="failed",
    error="it <b>diverged</b>",
)


def result(*records: TrialRecord, **more: Any) -> SweepResult:
    return SweepResult(
        **{
            "id": "demo-sweep-0123456789",
            "name": "demo",
            "records": records,
            "tolerance": 0.003,
            "tasks": 4,
            "about": {"router": "lda", "validation samples": 640, "repeats": 1},
            **more,
        }
    )


FULL = result(
    PUBLISHED,
    trial(1, 0.850, 300),
    trial(2, 0.848, 90),
    trial(3, 0.846, 20),
    trial(4, 0.840, 100),
    STOPPED,
    FAILED,
)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    records = [trial(n, a / 10, size) for n, (a, size) in enumerate(points)]
    unbeaten = {
        n
        for n, (a, size) in enumerate(points)
        if not any((b > a and other <= size) or (b >= a and other < size) for b, other in points)
    }
    assert {record.number for record in pareto(records)} == unbeaten


def test_best_and_smallest_are_among_finished_trials() -> None:
    assert FULL.best is not None
    assert FULL.smallest is not None
    assert FULL.best.id == "t001"
    assert FULL.smallest.id == "t002"  # t003 is 0.4 points below the best
    assert [record.id for record in FULL.pareto] == ["t001", "t002", "t003"]
    assert FULL.smallest_as_published is not None
    assert FULL.smallest_as_published.id == "t003"


def test_exactly_the_tolerance_counts_as_equal() -> None:
    found = result(trial(1, 0.9, 100), trial(2, 0.897, 10))
    assert found.smallest is not None
    assert found.smallest.id == "t002"


def test_equally_accurate_trials_are_told_apart_by_size() -> None:
    found = result(trial(1, 0.9, 100), trial(2, 0.9, 10))
    assert found.best is not None
    assert found.best.id == "t002"


def test_the_json_object_has_its_keys_and_no_others() -> None:
    data = json.loads(json.dumps(FULL.to_json()))
    assert list(data) == ["sweep", "backbone_images", "trials", "pareto", "best"]
    keys = ["id", "settings", "validation_accuracy", "nonzero_parameters", "published", "seconds"]
    assert all(list(one)[:6] == keys for one in data["trials"])
    assert [one["id"] for one in data["trials"] if "error" in one] == ["t006"]
    assert [one["published"] for one in data["trials"]] == [True, *[False] * 6]
    assert data["best"] == "t001"


def test_a_choice_is_named() -> None:
    assert FULL.pick("best").id == "t001"
    assert FULL.pick("smallest").id == "t002"
    assert FULL.pick("t004").id == "t004"
    with pytest.raises(SettingsError, match=r"no trial 't9'.*best, smallest or one of t000"):
        FULL.pick("t9")
    with pytest.raises(SettingsError, match=r"t006 of sweep .* is failed: it <b>diverged"):
        FULL.pick("t006")
    with pytest.raises(SettingsError, match="no trial of sweep"):
        result(FAILED).pick("best")


def test_sentences_compare_with_the_published_recipe() -> None:
    text = " ".join(sentences(FULL))
    assert "Best: t001 with 85.0 % and 300" in text
    assert "t002 with 84.8 % and 90 (3.33 times fewer)" in text
    assert "published recipe: t000 with 80.0 % and 400" in text
    assert "t003 needs 20 (20 times fewer)" in text
    assert "no yardstick" in " ".join(sentences(result(trial(1, 0.9, 5))))


def test_spread_over_repeats_is_shown() -> None:
    found = result(PUBLISHED, trial(1, 0.85, 300, accuracies=(0.80, 0.90)))
    assert "85.0 ± 7.1 %" in " ".join(sentences(found))


def test_importance_finds_what_matters() -> None:
    records = [
        trial(n, 0.5 + 0.01 * (n % 5), 10 + n // 5, settings={"a.x": n % 5, "a.y": n // 5 / 4})
        for n in range(20)
    ]
    domains = {"a.x": (0, 1, 2, 3, 4), "a.y": Range(low=0.0, high=1.0)}
    found = importances(records, domains, seed=0)
    assert found["validation accuracy"]["a.x"] > 0.9
    assert found["non-zero parameters"]["a.y"] > 0.9
    assert all(abs(sum(shares.values()) - 1) < 1e-6 for shares in found.values())


def test_importance_needs_trials_that_differ() -> None:
    domains = {"a.x": (1, 2), "a.y": (1, 2)}
    same = [trial(n, 0.5, 10, settings={"a.x": 1, "a.y": 1}) for n in range(9)]
    assert importances(same, domains, seed=0) == {}
    assert importances(same[:2], domains, seed=0) == {}


def test_the_table_fits_a_terminal_and_names_failures() -> None:
    out = io.StringIO()
    print_sweep(FULL, Console(file=out, width=80))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "it <b>diverged</b>" in text
    for name in ("t001", "t006", "best", "smallest", "published", "stopped after 2"):
        assert name in text


def test_a_long_table_still_shows_the_yardstick_and_the_smallest() -> None:
    many = [trial(n, 0.9, 1000) for n in range(1, 60)]
    out = io.StringIO()
    print_sweep(result(PUBLISHED, *many, trial(60, 0.899, 7)), Console(file=out, width=80))
    text = out.getvalue()
    assert "t000" in text
    assert "t060" in text
    assert "and 19 more" in text


def printed(found: SweepResult, width: int = 80) -> str:
    out = io.StringIO()
    print_sweep(found, Console(file=out, width=width))
    return out.getvalue()


SEARCHED = {
    "luca.flow": "tosca",
    "luca.ratio": 8,
    "learning.l1": 0.0012,
    "learning.learning_rate": 0.01,
    "learning.epochs": 20,
}


@pytest.mark.parametrize("keys", [1, 3, 4, 5])
def test_no_word_of_the_table_is_cut_at_80_columns(keys: int) -> None:
    searched = {key: SEARCHED[key] for key in list(SEARCHED)[:keys]}
    yardstick = trial(0, 0.9, 123_456, published=True, settings={"recipe": "tosca"})
    best_of_all = result(yardstick, trial(1, 0.8, 234_567, settings=searched), STOPPED)
    repeated = result(
        PUBLISHED, trial(1, 0.85, 1_234_567, settings=searched, accuracies=(0.80, 0.90))
    )
    for found in (best_of_all, repeated):
        text = printed(found)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
    assert "published," in printed(best_of_all)


def test_a_share_above_the_published_size_is_a_plain_number() -> None:
    found = result(PUBLISHED, trial(1, 0.9, 60_000))
    assert against_published(found.records[1], found) == "15,000 %"
    assert against_published(found.records[0], found) == "100 %"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("storage")
    sweep = Sweep.of("demo", [f"storage={storage}"])
    named = replace(
        FULL,
        id=sweep.id,
        importance={"validation accuracy": {"learning.l1": 0.75, "luca.ratio": 0.25}},
    )
    page = write_sweep(sweep, named, Storage.open(str(storage)))
    return Path(page).parent


def test_a_sweep_leaves_page_figures_tables_and_experiments(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    assert names >= {"sweep.html", "pareto.png", "importance.png", "trials.png"}
    assert names >= {"trials.csv", "results.json", "best.yaml", "smallest.yaml"}
    assert (written / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_settings_are_an_experiment_ready_to_run(written: Path) -> None:
    best = load_experiment(str(written / "best.yaml"))
    assert best.learning.l1 == 0.001
    assert best.luca.ratio == 8
    smallest = load_experiment(str(written / "smallest.yaml"))
    assert smallest.learning.l1 == 0.002
    assert smallest.bank_name != best.bank_name


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(written: Path) -> None:
    page = (written / "sweep.html").read_text("utf-8")
    assert "it &lt;b&gt;diverged" in page
    assert "<b>diverged" not in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert page.count("<img ") == 3
    assert all(re.findall(r'<img [^>]*alt="[^"]+"', page))
    for record in FULL.records:
        assert record.id in page


def test_the_csv_has_a_row_a_trial(written: Path) -> None:
    rows = list(csv.DictReader((written / "trials.csv").open(encoding="utf-8")))
    assert [row["trial"] for row in rows] == [f"t00{n}" for n in range(7)]
    assert [row["trial"] for row in rows if row["pareto"] == "True"] == ["t001", "t002", "t003"]
    assert rows[2]["learning.l1"] == "0.002"


def test_results_hold_the_ledger(written: Path) -> None:
    data = json.loads((written / "results.json").read_text("utf-8"))
    assert [TrialRecord.from_json(record) for record in data["records"]] == list(FULL.records)
    assert data["smallest"] == "t002"


def test_a_page_can_be_made_when_hardly_anything_finished(tmp_path: Path) -> None:
    sweep = Sweep.of("demo", [f"storage={tmp_path}"])
    found = result(PUBLISHED, FAILED, id=sweep.id)
    page = Path(write_sweep(sweep, found, Storage.open(str(tmp_path))))
    assert "t006" in page.read_text("utf-8")
    assert yaml.safe_load((page.parent / "best.yaml").read_text("utf-8"))["recipe"] == "tosca"
