from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pipelines.sources import SOURCES
from pipelines.stream import SCENARIOS, StreamSettings
from tests.pipelines.sources.data import stream_settings

SOURCE_EXAMPLES: list[dict[str, Any]] = [
    {"kind": "demo"},
    {"kind": "image_folder", "path": "d", "domain_folders": True},
    {"kind": "manifest", "path": "m.csv"},
    {"kind": "parquet", "path": ["a.parquet", "b.parquet"], "test_path": "t.parquet"},
    {"kind": "features", "path": "f.parquet", "test_fraction": 0.1},
    {"kind": "cifar", "path": "c.tar.gz"},
]
SCENARIO_EXAMPLES: list[dict[str, Any]] = [
    {"scenario": "class_incremental", "classes_per_task": 2, "class_order": ["a", "b"]},
    {"scenario": "task_incremental", "classes_per_task": 2, "shots": 5, "full_first_task": True},
    {"scenario": "domain_incremental", "domains": ["a", "b"], "blurry": 0.1, "long_tail": 0.5},
    {"scenario": "explicit", "tasks": [{"classes": ["a"]}, {"domain": "x"}, {"files": ["f"]}]},
]


def test_every_source_and_scenario_has_an_example_here() -> None:
    assert {example["kind"] for example in SOURCE_EXAMPLES} == set(SOURCES)
    assert {example["scenario"] for example in SCENARIO_EXAMPLES} == set(SCENARIOS)


@pytest.mark.parametrize("source", SOURCE_EXAMPLES, ids=lambda example: example["kind"])
@pytest.mark.parametrize("scenario", SCENARIO_EXAMPLES, ids=lambda example: example["scenario"])
def test_settings_written_out_whole_can_be_read_again(
    scenario: dict[str, Any], source: dict[str, Any]
) -> None:
    settings = stream_settings(**scenario, source=source)
    assert stream_settings(**settings.model_dump(mode="json")) == settings


def test_the_schema_for_editors_names_every_scenario_and_source() -> None:
    schema = TypeAdapter(StreamSettings).json_schema()
    assert set(schema["discriminator"]["mapping"]) == set(SCENARIOS)
    source = schema["$defs"]["ExplicitSettings"]["properties"]["source"]
    assert set(source["discriminator"]["mapping"]) == set(SOURCES)


def test_importing_streams_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, pipelines.stream; "
        "print([m for m in ('torch', 'timm', 'sklearn', 'pandas', 'ray', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
