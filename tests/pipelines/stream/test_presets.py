from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import orchestrator.presets
from tests.pipelines.sources.data import stream, stream_settings, write_images

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
