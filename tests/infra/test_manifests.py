"""Manifests: as committed, against KubeRay's schemas, and against our own rules."""

from __future__ import annotations

import copy
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from orchestrator.experiment import Experiment
from orchestrator.experiment_files import load_experiment, parse_experiment
from orchestrator.manifests import (
    RAY_VERSION,
    ManifestSettings,
    lint,
    load_manifest_settings,
    render,
    write_manifests,
)
from orchestrator.manifests.build import (
    experiment_on_cluster,
    kueue_patch,
    ray_cluster,
    ray_job,
)
from orchestrator.manifests.files import merge_patch
from tests.infra.kuberay_schema import schema_folder, schema_problems
from workers.errors import SettingsError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "kuberay"
Document = dict[str, Any]

needs_schemas = pytest.mark.skipif(
    schema_folder() is None, reason="KubeRay's schemas are not here: set LUCA_KUBERAY_SCHEMAS"
)
BUCKET = ManifestSettings.model_validate(
    {
        "storage": {"kind": "bucket", "uri": "s3://data/luca", "endpoint": "http://minio:9000"},
        "cpu_workers": None,
        "deadline_seconds": 86400,
    }
)


@pytest.fixture(scope="module")
def demo() -> Experiment:
    return load_experiment("demo")


def documents(texts: dict[str, str]) -> list[Document]:
    """What is applied by itself: neither patches nor kustomizations."""
    loaded = [yaml.safe_load(text) for name, text in texts.items() if "patch" not in name]
    return [document for document in loaded if document["kind"] != "Kustomization"]


def test_the_committed_files_are_those_of_their_settings(demo: Experiment) -> None:
    settings = load_manifest_settings(FOLDER / "settings.yaml")
    expected = render(demo, settings, source="infra/kuberay/settings.yaml")
    found = {
        path.relative_to(FOLDER).as_posix(): path.read_text("utf-8")
        for path in FOLDER.rglob("*.yaml")
        if path.name != "settings.yaml"
    }
    assert found == expected


def test_the_committed_settings_are_the_defaults() -> None:
    assert load_manifest_settings(FOLDER / "settings.yaml") == ManifestSettings()


@pytest.mark.parametrize("settings", [ManifestSettings(), BUCKET], ids=["claim", "bucket"])
def test_generated_documents_break_no_rule(demo: Experiment, settings: ManifestSettings) -> None:
    assert lint(documents(render(demo, settings))) == []


@needs_schemas
@pytest.mark.parametrize("settings", [ManifestSettings(), BUCKET], ids=["claim", "bucket"])
def test_generated_documents_fit_kuberays_schemas(settings: ManifestSettings) -> None:
    queued = merge_patch(ray_job(settings), kueue_patch(settings))
    for document in (ray_job(settings), ray_cluster(settings), queued):
        assert schema_problems(document) == []


@needs_schemas
@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d["spec"].update(shutDownAfterJobFinishes=True),
        lambda d: d["spec"].update(ttlSecondsAfterFinished="600"),
        lambda d: head(d)["rayStartParams"].update({"num-cpus": 0}),
        lambda d: container(d).pop("name"),
        lambda d: d["spec"]["rayClusterSpec"]["authOptions"].update(mode="tokens"),
    ],
)
def test_the_schema_check_catches_mistakes(spoil: Callable[[Document], object]) -> None:
    document = ray_job(ManifestSettings())
    spoil(document)
    assert schema_problems(document) != []


def head(document: Document) -> Document:
    found: Document = document["spec"]["rayClusterSpec"]["headGroupSpec"]
    return found


def worker(document: Document, number: int = 0) -> Document:
    found: Document = document["spec"]["rayClusterSpec"]["workerGroupSpecs"][number]
    return found


def pod(document: Document, number: int = 0) -> Document:
    found: Document = worker(document, number)["template"]["spec"]
    return found


def container(document: Document, number: int = 0) -> Document:
    found: Document = pod(document, number)["containers"][0]
    return found


MISTAKES: dict[str, Callable[[Document], object]] = {
    "at most 47": lambda d: d["metadata"].update(name="a" * 48),
    "must begin with a letter": lambda d: d["metadata"].update(name="1luca"),
    "submissionMode Foo": lambda d: d["spec"].update(submissionMode="Foo"),
    "exactly one of": lambda d: d["spec"].update(clusterSelector={"ray.io/cluster": "x"}),
    "InteractiveMode": lambda d: d["spec"].update(submissionMode="InteractiveMode"),
    "entrypoint is empty": lambda d: d["spec"].update(entrypoint=" "),
    "needs shutdownAfterJobFinishes": lambda d: d["spec"].update(shutdownAfterJobFinishes=False),
    "exclude each other": lambda d: d["spec"].update(
        deletionStrategy={"deletionRules": [{"policy": "DeleteSelf", "condition": {}}]}
    ),
    "DeleteWorkers": lambda d: d["spec"].update(
        deletionStrategy={"deletionRules": [{"policy": "DeleteWorkers", "condition": {}}]}
    ),
    "a suspended job": lambda d: d["spec"].update(suspend=True, shutdownAfterJobFinishes=False),
    "must not be negative": lambda d: d["spec"].update(backoffLimit=-1),
    "must be positive": lambda d: d["spec"].update(activeDeadlineSeconds=0),
    "exceeds maxReplicas": lambda d: worker(d).update(minReplicas=9),
    "is not between": lambda d: worker(d).update(replicas=9),
    "two worker groups": lambda d: worker(d).update(groupName="cpu"),
    "restartPolicy must be Never": lambda d: pod(d).update(restartPolicy="Always"),
    "num-cpus": lambda d: head(d)["rayStartParams"].pop("num-cpus"),
    "rayVersion is missing": lambda d: d["spec"]["rayClusterSpec"].pop("rayVersion"),
    "the image has Ray": lambda d: d["spec"]["rayClusterSpec"].update(rayVersion="2.59.0"),
    "needs Ray 2.52": lambda d: d["spec"]["rayClusterSpec"].update(rayVersion="2.51.2"),
    "is not token": lambda d: d["spec"]["rayClusterSpec"].pop("authOptions"),
    "has no tag": lambda d: container(d).update(image="registry:5000/luca"),
    "moving tag": lambda d: container(d).update(image="luca:latest"),
    "different images": lambda d: container(d).update(image="luca:other"),
    "equal in limits and requests": lambda d: container(d)["resources"]["requests"].pop(
        "nvidia.com/gpu"
    ),
    "toleration": lambda d: pod(d).pop("tolerations"),
    "medium Memory": lambda d: pod(d)["volumes"][0].update(emptyDir={}),
    "as large as the memory limit": lambda d: pod(d)["volumes"][0]["emptyDir"].update(
        sizeLimit="32Gi"
    ),
    "exceeds /dev/shm": lambda d: worker(d)["rayStartParams"].update(
        {"object-store-memory": str(2**40)}
    ),
    "mounted but not defined": lambda d: pod(d)["volumes"].pop(),
    "they are missing": lambda d: container(d)["resources"].pop("limits"),
    "memory must be equal": lambda d: container(d)["resources"]["requests"].update(memory="1Gi"),
    "use a Secret": lambda d: container(d)["env"].append({"name": "WANDB_API_KEY", "value": "x"}),
    "runAsNonRoot": lambda d: pod(d)["securityContext"].pop("runAsNonRoot"),
    "allowPrivilegeEscalation": lambda d: container(d).pop("securityContext"),
    "submitterPodTemplate cannot be used with SidecarMode": lambda d: d["spec"].update(
        submissionMode="SidecarMode"
    ),
    "must name the cluster": lambda d: d["spec"].update(clusterSelector={"x": "y"}),
    "suspend cannot be used with clusterSelector": lambda d: d["spec"].update(
        suspend=True, clusterSelector={"ray.io/cluster": "x"}
    ),
    "deletionRules and onSuccess": lambda d: d["spec"].update(
        deletionStrategy={
            "deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}],
            "onSuccess": {"policy": "DeleteSelf"},
        }
    ),
    "or both onSuccess and onFailure": lambda d: d["spec"].update(deletionStrategy={}),
    "either jobStatus or jobDeploymentStatus": lambda d: d["spec"].update(
        deletionStrategy={"deletionRules": [{"policy": "DeleteSelf", "condition": {}}]}
    ),
    "runtimeEnvYAML is not": lambda d: d["spec"].update(runtimeEnvYAML="pip: ["),
    "state resources or rayStartParams": lambda d: head(d).update(resources={"cpu": "4"}),
    "labels do not belong": lambda d: worker(d)["rayStartParams"].update(labels="a=b"),
    "there is no container": lambda d: pod(d).pop("containers"),
    "keep the former": lambda d: head(d)["template"]["spec"]["containers"][0]["env"].append(
        {"name": "RAY_enable_autoscaler_v2", "value": "1"}
    ),
    "without enableInTreeAutoscaling": lambda d: (
        d["spec"]["rayClusterSpec"].update(enableInTreeAutoscaling=False),
        head(d)["template"]["spec"]["containers"][0]["env"].append(
            {"name": "RAY_enable_autoscaler_v2", "value": "1"}
        ),
    ),
    "suspend cannot be used with the autoscaler": lambda d: worker(d).update(suspend=True),
    "needs autoscaler v2": lambda d: d["spec"]["rayClusterSpec"]["autoscalerOptions"].update(
        version="v1"
    ),
    "use gcsFaultToleranceOptions": lambda d: head(d)["template"]["spec"]["containers"][0][
        "env"
    ].append({"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}),
    "set enableInTreeAutoscaling: false": lambda d: d["metadata"]["labels"].update(
        {"kueue.x-k8s.io/queue-name": "luca"}
    ),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_each_rule_catches_its_mistake(sentence: str) -> None:
    document = copy.deepcopy(ray_job(ManifestSettings()))
    assert lint([document]) == []
    MISTAKES[sentence](document)
    assert any(sentence in problem for problem in lint([document])), lint([document])


def test_kueues_limits_are_rules_too() -> None:
    settings = ManifestSettings()
    queued = merge_patch(ray_job(settings), kueue_patch(settings))
    assert lint([queued]) == []
    groups = queued["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    groups[0]["groupName"] = "head"
    groups += [{**copy.deepcopy(groups[1]), "groupName": f"g{i}"} for i in range(6)]
    queued["spec"]["shutdownAfterJobFinishes"] = False
    problems = " ".join(lint([queued]))
    for sentence in ("7 worker groups, there are 8", "name head", "Kueue needs shutdown"):
        assert sentence in problems


def test_storage_that_pods_would_lose_is_found_across_documents(demo: Experiment) -> None:
    found = documents(render(demo, ManifestSettings()))
    for document in found:
        if document["kind"] == "ConfigMap":
            document["data"]["experiment.yaml"] = "storage: /tmp/luca\n"
    problems = [p for p in lint(found) if "would be lost" in p]
    assert any(p.startswith("RayJob luca: group gpu") for p in problems)


def test_the_job_runs_the_experiment_of_its_config_map(demo: Experiment) -> None:
    found = {(d["kind"], d["metadata"]["name"]): d for d in documents(render(demo, BUCKET))}
    job = found["RayJob", "luca"]
    mounts = head(job)["template"]["spec"]["containers"][0]["volumeMounts"]
    place = next(m["mountPath"] for m in mounts if m["name"] == "experiment")
    assert shlex.split(job["spec"]["entrypoint"]) == ["luca", "run", f"{place}/experiment.yaml"]
    text = found["ConfigMap", "luca-experiment"]["data"]["experiment.yaml"]
    experiment = parse_experiment(yaml.safe_load(text))
    assert experiment == experiment_on_cluster(demo, BUCKET)
    assert experiment.storage == "s3://data/luca"
    assert experiment.run_id == demo.run_id


def test_actors_are_counted_for_the_groups_at_their_largest(demo: Experiment) -> None:
    settings = ManifestSettings.model_validate({"gpu_workers": {"gpus": 2, "max": 4, "cpus": 16}})
    planned = experiment_on_cluster(demo, settings).cluster
    assert (planned.shards, planned.gpus_per_shard) == (8, 1.0)
    own = demo.model_copy(update={"cluster": demo.cluster.model_copy(update={"shards": 3})})
    assert experiment_on_cluster(own, settings).cluster.shards == 3


def test_more_actors_than_the_groups_can_hold_are_refused(demo: Experiment) -> None:
    wish = demo.cluster.model_copy(update={"shards": 5, "gpus_per_shard": 1.0})
    with pytest.raises(SettingsError, match=r"raise gpu_workers\.max"):
        render(demo.model_copy(update={"cluster": wish}), ManifestSettings())


def test_data_that_pods_cannot_see_is_refused() -> None:
    source = {"kind": "features", "path": "here.parquet"}
    stream = {"scenario": "class_incremental", "classes_per_task": 2, "source": source}
    experiment = parse_experiment({"name": "x", "stream": stream})
    with pytest.raises(SettingsError, match=r"stream\.source\.path is 'here\.parquet'"):
        render(experiment, ManifestSettings())


def test_no_secret_stands_in_a_manifest(demo: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "sesame-wandb")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame-aws")
    texts = "".join(render(demo, BUCKET).values())
    assert "sesame" not in texts
    assert "secretKeyRef" in texts


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"gpu_workers": {"gpus": 1, "min": 3, "max": 2}}, "must not exceed"),
        ({"gpu_workers": {"gpus": 0}}, "use cpu_workers"),
        ({"gpu_workers": None, "cpu_workers": None}, "nothing could run"),
        ({"cpu_workers": {"memory": "8Gi", "shared_memory": "6Gi"}}, "more than half"),
        ({"cpu_workers": {"memory": "8GB"}}, "8Gi"),
        ({"image": "luca"}, "image"),
        ({"name": "Luca"}, "name"),
        ({"storage": {"kind": "bucket", "uri": "data"}}, "uri"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValidationError, match=hint):
        ManifestSettings.model_validate(settings)


def test_a_wrong_settings_file_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("retrys: 2\n")
    with pytest.raises(SettingsError, match="retrys") as caught:
        load_manifest_settings(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_manifest_settings(tmp_path / "none.yaml")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_makes_of_the_overlay_what_our_merge_makes(
    demo: Experiment, tmp_path: Path
) -> None:
    settings = ManifestSettings(queue="team-a")
    write_manifests(demo, settings, tmp_path)
    command = ["kubectl", "kustomize", str(tmp_path / "overlays" / "kueue")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    built = {d["kind"]: d for d in yaml.safe_load_all(done.stdout)}
    assert built["RayJob"] == merge_patch(ray_job(settings), kueue_patch(settings))
    assert set(built) == {"RayJob", "ConfigMap", "PersistentVolumeClaim"}
    assert lint(list(built.values())) == []


def test_image_manifests_and_wheel_agree_on_ray() -> None:
    dockerfile = (ROOT / "infra" / "Dockerfile").read_text("utf-8")
    assert set(re.findall(r"RAY_VERSION=(\S+)", dockerfile)) == {RAY_VERSION}
    assert f"luca:0.1.0-ray{RAY_VERSION}-cuda" in dockerfile
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    low, high = re.findall(r'"ray\[train,tune\]>=([\d.]+),<([\d.]+)"', project)[0]
    version = [int(part) for part in RAY_VERSION.split(".")]
    assert [int(p) for p in low.split(".")] <= version < [int(p) for p in high.split(".")]
    assert f'version = "{re.findall(r"luca:([0-9.]+)-ray", dockerfile)[0]}"' in project


def test_the_image_has_the_versions_that_the_tests_run_with() -> None:
    dockerfile = (ROOT / "infra" / "Dockerfile").read_text("utf-8")
    ignored = (ROOT / "infra" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    for name in ("ray", "torch", "torchvision"):
        (tested,) = re.findall(rf"(?m)^{name}==(\S+)", constraints)
        assert set(re.findall(rf"{name.upper()}_VERSION=(\S+)", dockerfile)) == {tested}
    assert dockerfile.count("pip install --constraint /wheels/constraints.txt") == 2
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", dockerfile)
    for name in " ".join(copied).split():
        assert f"!{name}" in ignored


def test_pods_that_ask_for_no_gpu_are_shown_none() -> None:
    assignments = re.findall(
        r"(?m)^(?:ENV|ARG)? +?(\w+)=", (ROOT / "infra" / "Dockerfile").read_text("utf-8")
    )
    assert "NVIDIA_DRIVER_CAPABILITIES" in assignments
    assert "NVIDIA_VISIBLE_DEVICES" not in assignments


def test_both_images_run_without_root_and_as_the_manifests_say() -> None:
    dockerfile = (ROOT / "infra" / "Dockerfile").read_text("utf-8")
    stages = re.split(r"(?m)^FROM ", dockerfile)[1:]
    by_name = {re.findall(r"AS (\w+)", stage)[0]: stage for stage in stages}
    user = ManifestSettings().user
    for target in ("cpu", "cuda"):
        assert re.findall(r"(?m)^(?:USER|RUN) .*$", by_name[target])[-1] == f"USER {user}:{user}"
        assert "[jobs]" in by_name[target]
    for package in ("orchestrator", "pipelines", "workers"):
        assert f"COPY {package} {package}" in by_name["wheel"]
