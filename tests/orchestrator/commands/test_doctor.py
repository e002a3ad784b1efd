"""`luca doctor` finds what a run would miss and says what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkup import check_everything, machine, services, weights
from orchestrator.checkup.finding import Finding
from orchestrator.experiment_files import load_experiment
from orchestrator.tracking.tracker import WandbSettings
from pipelines.cluster import ClusterSettings
from tests.orchestrator.commands.command_line import CommandLine
from tests.pipelines.sources.data import write_features
from workers.errors import BackboneError
from workers.modeling.backbone import BackboneSettings
from workers.modeling.hub import published_weights

SECRET = "a" * 40


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_all_is_well_for_the_demo(typed: CommandLine, tmp_path: Path) -> None:
    done = typed("doctor", "-o", f"storage={tmp_path / 's'}", "-o", "tracking.wandb.mode=offline")
    assert done.code == 0, done.out
    assert done.out.splitlines()[-1] == "demo is ready to run"
    for area in ("python", "packages", "threads", "devices", "storage", "backbone", "wandb", "ray"):
        assert f" {area} " in done.out
    assert not (tmp_path / "s").exists()


def test_something_wrong_ends_with_code_1_and_advice(typed: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = typed("doctor", "-o", f"storage={tmp_path / 'file' / 'inside'}", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert not found["ok"]
    wrong = [f for f in found["findings"] if f["status"] == "wrong"]
    assert [f["area"] for f in wrong] == ["storage"]
    assert all(f["advice"] for f in wrong)


def test_a_mistake_in_the_experiment_ends_with_code_2(typed: CommandLine) -> None:
    done = typed("doctor", "-o", "sede=1")
    assert done.code == 2
    assert "did you mean 'seed'" in done.err


def test_a_preset_without_its_path_says_which_option_sets_it(typed: CommandLine) -> None:
    done = typed("doctor", "cub_inc10")
    assert done.code == 2
    assert "stream.source.path" in done.err


def test_every_finding_that_is_wrong_says_what_to_do(tmp_path: Path) -> None:
    experiment = load_experiment(
        "demo",
        [
            "storage=/proc/none",
            f"stream.source={{kind: image_folder, path: {tmp_path / 'nowhere'}}}",
            "backbone.weights=none.pth",
            "cluster.address=127.0.0.1:1",
            "cluster.connect_seconds=1",
        ],
    )
    wrong = [f for f in check_everything(experiment, start_ray=False) if f.status == "wrong"]
    assert {f.area for f in wrong} == {"storage", "samples", "backbone", "ray"}
    assert all(f.advice for f in wrong)


# -- packages and machine ------------------------------------------------------------------------------------


def test_missing_and_old_packages_are_named() -> None:
    assert machine.unmet_requirements(["pyarrow>=17", "nothing-such>=1; extra == 'jobs'"]) == []
    assert machine.unmet_requirements(["nothing-such>=1", "pyarrow>=900"]) == [
        "nothing-such is missing",
        f"pyarrow is {machine.version_of('pyarrow')}, and >=900 is needed",
    ]


def test_a_package_that_cannot_be_imported_stops_the_rest(
    typed: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> str | None:
        return "libtorch.so: cannot open" if name == "torch" else None

    monkeypatch.setattr(machine, "import_fault", broken)
    done = typed("doctor", "no-such-experiment")
    assert done.code == 1
    assert "torch is installed and cannot be imported: libtorch.so: cannot open" in done.out


def test_import_faults_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError("first line\nsecond line")

    assert machine.import_fault("pyarrow") is None
    assert machine.import_fault("nothing-such") is None
    monkeypatch.setattr(machine.importlib, "import_module", fail)
    assert machine.import_fault("pyarrow") == "first line"


def test_more_threads_than_processors_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    for asked, status in (("1", "ok"), ("4096", "note"), ("many", "note"), ("", "ok")):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert only(machine.check_processors()).status == status


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert list(machine.check_processors())[-1].area == "load"


@pytest.mark.parametrize(
    ("text", "limit"), [("max 100000", None), ("100000 100000", 1), ("5", None)]
)
def test_a_containers_quota_counts(tmp_path: Path, text: str, limit: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    unlimited = machine.usable_cpus(tmp_path / "missing")
    assert machine.usable_cpus(tmp_path / "cpu.max") == (limit or unlimited)


def test_little_shared_memory_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert only(machine.check_shared_memory(str(tmp_path / "none"))).status == "ok"
    usage = type(machine.shutil.disk_usage("/"))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(64 * 2**20, 0, 64 * 2**20))
    finding = only(machine.check_shared_memory(str(tmp_path)))
    assert finding.status == "wrong"
    assert "--shm-size" in finding.advice


# -- storage, samples, backbone ------------------------------------------------------------------------------


def test_storage_that_is_there_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    finding = only(services.check_storage(str(tmp_path)))
    assert (finding.status, list(tmp_path.iterdir())) == ("ok", [])


def test_little_space_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(services.shutil.disk_usage("/"))
    monkeypatch.setattr(services.shutil, "disk_usage", lambda _: usage(10**9, 0, 10**6))
    finding = only(services.check_storage(str(tmp_path / "new")))
    assert finding.status == "note"
    assert "1.0 MB free" in finding.found


def test_a_storage_address_that_nobody_knows_is_wrong() -> None:
    assert only(services.check_storage("gopher://x/y")).status == "wrong"


def test_samples_that_are_missing_are_named_with_the_nearest_folder(tmp_path: Path) -> None:
    found = list(services.check_samples([str(tmp_path), str(tmp_path / "a" / "b")]))
    assert [f.status for f in found] == ["ok", "wrong"]
    assert str(tmp_path) in found[1].found


def test_ready_features_need_no_backbone(typed: CommandLine, tmp_path: Path) -> None:
    write_features(tmp_path / "f.parquet", ["a", "b"])
    file = tmp_path / "e.yaml"
    file.write_text(
        f"storage: {tmp_path / 's'}\nstream:\n  scenario: class_incremental\n  classes_per_task: 1\n"
        f"  source: {{kind: features, path: {tmp_path / 'f.parquet'}}}\n"
        "backbone: {name: vit_base_patch16_224}\n"
    )
    done = typed("doctor", file)
    assert done.code == 0
    assert "none needed: the experiment reads ready features" in done.out


def test_hub_weights_are_looked_for_and_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "vit_tiny_patch16_224"
    assert not published_weights(name).available
    settings = BackboneSettings(name=name)
    finding = list(weights.check_weights(settings, needed=True))[-1]
    assert finding.status == "wrong"
    assert "backbone.weights=PATH" in finding.advice
    monkeypatch.setattr("workers.modeling.hub._reachable", lambda _: True)
    assert "can be reached" in list(weights.check_weights(settings, needed=True))[-1].found
    monkeypatch.setattr("workers.modeling.hub._cached_file", lambda _: "file")
    assert "on this machine" in list(weights.check_weights(settings, needed=True))[-1].found
    with pytest.raises(BackboneError, match="no weights for 'vit_nano'"):
        published_weights("vit_nano")


def test_local_weights_that_do_not_fit_are_wrong(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    file = tmp_path / "w.safetensors"
    save_file({"x": torch.zeros(2)}, file)
    settings = BackboneSettings(weights=str(file))
    finding = list(weights.check_weights(settings, needed=True))[-1]
    assert finding.status == "wrong"
    assert "does not fit" in finding.advice


# -- W&B and Ray ---------------------------------------------------------------------------------------------


def wandb_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: Any) -> Finding:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    return only(services.check_wandb(WandbSettings(mode=mode)))


def test_a_key_is_found_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    finding = wandb_finding(monkeypatch, tmp_path, "online")
    assert finding.status == "ok"
    assert "an API key was found" in finding.found
    assert SECRET not in str(finding)


def test_online_without_a_key_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert wandb_finding(monkeypatch, tmp_path, "online").status == "note"
    assert "offline" in wandb_finding(monkeypatch, tmp_path, "offline").found
    assert wandb_finding(monkeypatch, tmp_path, "disabled").found == "off"


def test_a_local_ray_is_only_promised_until_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    finding = only(services.check_ray(ClusterSettings(), start=False))
    assert finding.status == "ok"
    assert "--ray tries it" in finding.found


def test_a_ray_address_where_nobody_listens_is_wrong() -> None:
    settings = ClusterSettings(address="127.0.0.1:1", connect_seconds=1)
    assert only(services.check_ray(settings, start=False)).status == "wrong"


@pytest.mark.ray
def test_ray_is_really_joined(ray_session: object) -> None:
    finding = only(services.check_ray(ClusterSettings(), start=True))
    assert finding.status == "ok"
    assert "a worker answers" in finding.found
