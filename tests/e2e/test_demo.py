"""The main job on real images: the demo preset, as a user runs it, checked by its numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import results

pytestmark = pytest.mark.e2e

LUCA = [sys.executable, "-m", "orchestrator.cli"]


def luca(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LUCA, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
        check=False,
    )


def run_json(*arguments: str) -> dict[str, Any]:
    finished = luca("run", *arguments, "--json")
    assert finished.returncode == 0, finished.stderr[-2000:]
    value: dict[str, Any] = json.loads(finished.stdout)
    return value


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "storage"


@pytest.fixture(scope="module")
def demo(storage: Path) -> dict[str, Any]:
    return run_json("demo", "-o", f"storage={storage}")


def final(summary: dict[str, Any], method: str) -> float:
    value: float = summary["metrics"][method]["final_accuracy"]
    return value


def test_every_image_passes_the_backbone_once(demo: dict[str, Any]) -> None:
    assert demo["backbone_images"] == 4797
    assert demo["tasks_learned"] == 10
    assert demo["bank"] == demo["name"] == "demo"


def test_the_oracle_module_is_nearly_always_right(demo: dict[str, Any]) -> None:
    assert final(demo, "oracle") > 0.95


def test_statistics_route_far_better_than_class_means(demo: dict[str, Any]) -> None:
    assert final(demo, "lda") > 0.78
    assert final(demo, "lda") > final(demo, "simplecil") + 0.10


def test_per_sample_lda_comes_close_to_the_joint_bound(demo: dict[str, Any]) -> None:
    assert abs(final(demo, "joint_linear") - final(demo, "lda")) < 0.05
    on_average = [
        demo["metrics"][method]["average_incremental_accuracy"]
        for method in ("joint_linear", "lda")
    ]
    assert abs(on_average[0] - on_average[1]) < 0.05


def test_batch_routing_needs_an_ordered_test_set(demo: dict[str, Any]) -> None:
    assert final(demo, "batch_entropy") > final(demo, "batch_entropy_shuffled") + 0.15


def test_the_numbers_follow_from_the_stored_predictions(demo: dict[str, Any]) -> None:
    predictions = results.read_predictions(demo["run_dir"])
    counted = results.metrics_from_predictions(predictions)
    for method, metrics in demo["metrics"].items():
        for name, value in metrics.items():
            assert value == pytest.approx(counted[method][name], abs=1e-12), (method, name)


def test_the_report_and_its_tables_are_there(demo: dict[str, Any]) -> None:
    run_dir = Path(demo["run_dir"])
    for name in ("report.html", "summary.json", "events.jsonl", "experiment.yaml"):
        assert (run_dir / name).stat().st_size > 0
    assert "lda" in (run_dir / "report.html").read_text()


def test_the_second_run_learns_nothing_and_says_the_same(
    demo: dict[str, Any], storage: Path
) -> None:
    again = run_json("demo", "-o", f"storage={storage}")
    assert (again["tasks_learned"], again["backbone_images"]) == (0, 0)
    assert again["digest"] == demo["digest"]
    assert again["metrics"] == demo["metrics"]


def test_another_recipe_reuses_every_feature(demo: dict[str, Any], storage: Path) -> None:
    published = run_json(
        "demo", "-o", f"storage={storage}", "-o", "recipe=tosca", "-o", "bank=published"
    )
    assert published["backbone_images"] == 0
    assert published["tasks_learned"] == 10
    assert final(published, "oracle") > 0.9
    # The published protocol's figure rests on the order of its test set.
    assert final(published, "batch_entropy") > final(published, "batch_entropy_shuffled") + 0.2
    assert final(published, "lda") > final(published, "batch_entropy")


def test_a_mistake_ends_in_one_sentence_and_code_2(storage: Path) -> None:
    finished = luca("run", "demo", "-o", f"storage={storage}", "-o", "learning.epoch=3")
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.count("\n") == 1
    assert "did you mean 'epochs'" in finished.stderr


def image_folder(root: Path) -> Path:
    """Twelve small pictures of two classes that a backbone can tell apart."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for c, low in (("dark", 0), ("light", 150)):
        for split, count in (("train", 8), ("test", 4)):
            folder = root / split / c
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(low, low + 100, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


FOLDER = ("-o", "stream.classes_per_task=1", "-o", "stream.source.kind=image_folder")


def test_an_image_folder_is_learned(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "pictures")
    summary = run_json(
        "demo", *FOLDER, "-o", f"stream.source.path={root}", "-o", f"storage={tmp_path / 's'}"
    )
    assert summary["backbone_images"] == 24
    assert final(summary, "lda") == 1.0


def test_an_unreadable_image_stops_the_run_before_it_learns(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "pictures")
    bad = root / "test" / "light" / "2.png"
    bad.write_bytes(bad.read_bytes()[:60])
    options = [*FOLDER, "-o", f"stream.source.path={root}", "-o", f"storage={tmp_path / 's'}"]
    finished = luca("run", "demo", *options)
    assert finished.returncode == 2
    assert str(bad) in finished.stderr.splitlines()[-1]
    assert not (tmp_path / "s" / "banks").exists() or not any(
        (tmp_path / "s" / "banks").rglob("versions/*")
    )
    tolerant = run_json("demo", *options, "-o", "features.tolerate_unreadable=1")
    assert tolerant["tasks_learned"] == 2


def test_a_killed_run_continues_to_the_same_digest(demo: dict[str, Any], tmp_path: Path) -> None:
    import signal
    import time

    storage = tmp_path / "killed"
    process = subprocess.Popen(
        [*LUCA, "run", "demo", "-o", f"storage={storage}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    versions = storage / "banks" / "demo" / "versions"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and len(list(versions.glob("*.json"))) < 3:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 3 <= len(list(versions.glob("*.json"))) < 10, "the run was not killed half way"
    continued = run_json("demo", "-o", f"storage={storage}")
    assert continued["digest"] == demo["digest"]
    assert 0 < continued["tasks_learned"] < 10
    assert continued["metrics"] == demo["metrics"]
    shutil.rmtree(storage)
