"""`luca manifests`, from anywhere and with any settings file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.orchestrator.commands.command_line import CommandLine


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a checkout."""
    monkeypatch.chdir(tmp_path)


def test_without_settings_the_defaults_are_written(typed: CommandLine, tmp_path: Path) -> None:
    done = typed("manifests", "demo", "deploy")
    assert done.code == 0, done
    assert "deploy/base/rayjob.yaml" in done.out.splitlines()
    text = (tmp_path / "deploy" / "base" / "rayjob.yaml").read_text()
    assert text.startswith("# Written by `luca manifests` from the default settings:")
    assert yaml.safe_load(text)["spec"]["backoffLimit"] == 3


def test_keys_that_a_settings_file_leaves_out_are_default(
    typed: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("retries: 1\n")
    assert typed("manifests", "demo", "deploy", "--settings", "mine.yaml").code == 0
    job = yaml.safe_load((tmp_path / "deploy" / "base" / "rayjob.yaml").read_text())
    assert job["spec"]["backoffLimit"] == 1
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == "2.60.0"


def test_mistakes_write_nothing(typed: CommandLine, tmp_path: Path) -> None:
    assert "none.yaml" in typed.refused("manifests", "demo", "deploy", "--settings", "none.yaml")
    (tmp_path / "mine.yaml").write_text("gpu_workers: {gpus: 1, max: 0}\n")
    assert "gpu_workers.max" in typed.refused(
        "manifests", "demo", "deploy", "--settings", "mine.yaml"
    )
    assert not (tmp_path / "deploy").exists()


@pytest.mark.parametrize(
    ("key", "path", "storage", "words"),
    [
        ("stream.source.path", "/data/x.parquet", "", "use a path below /storage"),
        ("stream.source.path", "/storage/../data", "", "use a path below /storage"),
        ("stream.source.path", "/storage-2/x", "", "use a path below /storage"),
        ("backbone.weights", "/opt/w.safetensors", "", "use a path below /storage"),
        ("stream.source.path", "/storage/x", "{kind: bucket, uri: 's3://b/luca'}", "s3://bucket/"),
        ("backbone.weights", "/opt/w", "{kind: bucket, uri: 's3://b/luca'}", "use an image that"),
        ("stream.source.path", "/storage/x", "", None),
        ("stream.source.path", "/lake/x", "{kind: claim, mount: /lake/}", None),
        ("stream.source.path", "s3://b/x", "", None),
    ],
)
def test_a_path_on_no_mounted_volume_is_warned_about_since_only_the_image_could_hold_it(
    typed: CommandLine, tmp_path: Path, key: str, path: str, storage: str, words: str | None
) -> None:
    (tmp_path / "mine.yaml").write_text(f"storage: {storage}\n" if storage else "{}")
    source = "stream.source={kind: features, path: 's3://b/f'}"
    options = ["--settings", "mine.yaml", "-o", source, "-o", f"{key}={path}"]
    done = typed("manifests", "demo", "deploy", *options)
    assert done.code == 0, done
    assert (tmp_path / "deploy" / "base" / "rayjob.yaml").is_file()
    if words is None:
        assert done.err == ""
    else:
        assert done.sentence.startswith(f"luca: {key} is '{path}', which lies on no volume")
        assert words in done.sentence
