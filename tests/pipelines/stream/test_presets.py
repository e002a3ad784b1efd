from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import orchestrator.presets
from tests.pipelines.sources.data import stream, stream_settings, write_images
from tests.pipelines.sources.test_cifar import Batches, pixels, write_archive, write_folder

FOLDERS = Path(orchestrator.presets.__path__[0])
PUBLISHED = {
    "cifar100_inc5": (100, 20),
    "cub_inc10": (200, 20),
    "imagenet_r_inc20": (200, 10),
    "imagenet_a_inc20": (200, 10),
    "omnibenchmark_inc30": (300, 10),
    "vtab_inc10": (50, 5),
}


def preset(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((FOLDERS / f"{name}.yaml").read_text())
    return data


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_preset_asks_for_its_path_and_for_nothing_else(name: str) -> None:
    data = preset(name)
    assert (data["name"], data["seed"], data["recipe"]) == (name, 1993, "tosca")
    with pytest.raises(
        ValidationError, match=r"say where the data are: -o stream\.source\.path="
    ) as e:
        stream_settings(**data["stream"])
    assert e.value.error_count() == 1
    data["stream"]["source"]["path"] = "DIR"
    assert stream_settings(**data["stream"]).source.path == "DIR"


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "cifar100_inc5"])
def test_the_documented_folders_give_the_published_number_of_tasks(
    name: str, tmp_path: Path
) -> None:
    classes, tasks = PUBLISHED[name]
    splits = {f"{split}/c{at:03d}": 1 for at in range(classes) for split in ("train", "test")}
    write_images(tmp_path, splits)
    settings = preset(name)["stream"]
    source = {**settings.pop("source"), "path": tmp_path}
    built = stream(source, **settings)
    assert len(built.tasks) == tasks
    assert len(built.classes) == classes


def cifar100() -> Batches:
    """Two training samples and a test sample of each of the hundred classes."""
    labels = list(range(100))
    names = [f"fine {number:02d}".encode() for number in labels]
    return {
        "train": {
            b"data": pixels(200, 1),
            b"fine_labels": 2 * labels,
            b"coarse_labels": [0] * 200,
        },
        "test": {b"data": pixels(100, 2), b"fine_labels": labels, b"coarse_labels": [0] * 100},
        "meta": {b"fine_label_names": names, b"coarse_label_names": [b"thing"]},
    }


@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar_100_as_downloaded_or_unpacked_gives_twenty_tasks_in_the_published_order(
    tmp_path: Path, unpacked: bool
) -> None:
    if unpacked:
        path = write_folder(tmp_path / "cifar-100-python", cifar100())
    else:
        path = write_archive(tmp_path / "cifar-100-python.tar.gz", cifar100())
    settings = preset("cifar100_inc5")["stream"]
    built = stream({**settings.pop("source"), "path": path}, **settings)
    assert [len(task.classes) for task in built.tasks] == [5] * 20
    first = [built.classes[number] for number in built.tasks[0].classes]
    # The beginning of numpy.random.RandomState(1993).permutation(100).
    assert first == ["fine 68", "fine 56", "fine 78", "fine 08", "fine 23"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_preset_says_where_its_data_come_from_and_how_they_lie(name: str) -> None:
    text = (FOLDERS / f"{name}.yaml").read_text()
    assert "# Data: " in text
    assert "# Layout" in text
    assert "https://" in text
    assert f"luca run {name} -o stream.source.path=DIR" in text
