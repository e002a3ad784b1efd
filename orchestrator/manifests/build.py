"""Kubernetes documents from settings: pure functions to plain dictionaries.

Ray's head runs the driver and nothing else (``num-cpus: 0``).  A failed RayJob is retried on a fresh cluster
with the same command, which resumes from storage.  Pods keep no state, run without root, and get secrets
from Secrets only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from orchestrator.experiment import Experiment, merge
from orchestrator.experiment_files import parse_experiment
from orchestrator.manifests.lint import QUEUE_LABEL
from orchestrator.manifests.settings import (
    BucketStorage,
    ClaimStorage,
    ManifestSettings,
    NodeGroup,
    quantity_bytes,
)
from orchestrator.yaml_text import write_yaml
from pipelines.cluster import ClusterResources, NodeResources, plan_actors, unplaced
from workers.errors import SettingsError
from workers.wording import plural

Document = dict[str, Any]

EXPERIMENT_FOLDER = "/etc/luca"
OBJECT_STORE_SHARE = 0.9


def experiment_on_cluster(experiment: Experiment, settings: ManifestSettings) -> Experiment:
    """The experiment as the job runs it: shared storage, and actors counted for the groups' full size.

    Raises:
        SettingsError: it asks for more than the groups can grow to, or names data that pods cannot see.
    """
    nodes = tuple(
        NodeResources(f"{name}-{i}", name, float(group.cpus), float(group.gpus))
        for name, group in settings.groups.items()
        for i in range(group.max)
    )
    largest = ClusterResources(nodes)
    plan = plan_actors(experiment.cluster, largest)
    missing = unplaced(plan.bundles(), largest)
    if missing:
        needs = ", ".join(f"{plural(b.cpus, 'CPU')} and {plural(b.gpus, 'GPU')}" for b in missing)
        raise SettingsError(
            f"cluster: the node groups, grown to their max, have no room for actors with {needs}: raise "
            "gpu_workers.max or cpu_workers.max, or lower the counts in the experiment"
        )
    _refuse_local_paths(experiment)
    changes = {
        "storage": settings.storage.uri,
        "cluster": {
            "address": None,
            "shards": plan.shards.count,
            "trainers": plan.trainers.count,
            "evaluators": plan.evaluators.count,
            "gpus_per_shard": plan.shards.num_gpus,
            "wait_for_resources_seconds": float(settings.wait_seconds),
        },
    }
    return parse_experiment(merge(experiment.model_dump(mode="json"), changes))


def outside_mounts(experiment: Experiment, settings: ManifestSettings) -> list[str]:
    """A sentence for every path that no volume of the pods holds; it may be in the image, which cannot be seen from here."""
    storage = settings.storage
    mount = storage.mount if isinstance(storage, ClaimStorage) else None
    found = []
    for key, path in _local_paths(experiment):
        if mount is not None and PurePosixPath(normpath(path)).is_relative_to(normpath(mount)):
            continue
        instead = "an address such as s3://bucket/data"
        if mount is not None:
            instead = f"a path below {mount}"
        elif key == "backbone.weights":  # read from a file only
            instead = "an image that does"
        found.append(
            f"{key} is {path!r}, which lies on no volume that these manifests mount: unless the image holds it, the run "
            f"will not find it; use {instead}"
        )
    return found


def _refuse_local_paths(experiment: Experiment) -> None:
    for key, path in _local_paths(experiment):
        if not path.startswith("/"):
            raise SettingsError(
                f"{key} is {path!r}, which pods would look for in their own folder: use an absolute "
                "path below the storage's mount, or an address such as s3://bucket/data"
            )


def _local_paths(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Every path, with its key, at which a run looks for data or weights in its own file system."""
    source = experiment.stream.source.model_dump(mode="json")
    weights = experiment.backbone.model_dump(mode="json").get("weights")
    named = {f"stream.source.{k}": v for k, v in source.items() if k in ("path", "test_path")}
    for key, value in {**named, "backbone.weights": weights}.items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and "://" not in path:
                yield key, path


def config_map(experiment: Experiment, settings: ManifestSettings) -> Document:
    """The experiment as a ConfigMap, mounted where the driver reads it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(settings, f"{settings.name}-experiment"),
        "data": {"experiment.yaml": _brief(experiment_on_cluster(experiment, settings))},
    }


def _brief(experiment: Experiment) -> str:
    """The experiment as YAML without what is default anyway, when that reads back the same."""
    brief = experiment.model_dump(mode="json", exclude_defaults=True)
    if parse_experiment(brief) != experiment:
        return experiment.to_yaml()
    return write_yaml(brief)


def storage_claim(settings: ManifestSettings) -> Document | None:
    """The claim that all pods share, or None when it exists already or storage is a bucket."""
    storage = settings.storage
    if not isinstance(storage, ClaimStorage) or not storage.create:
        return None
    spec: Document = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class is not None:
        spec["storageClassName"] = storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(settings, storage.name),
        "spec": spec,
    }


def ray_job(settings: ManifestSettings) -> Document:
    """One run as a RayJob."""
    spec: Document = {
        "entrypoint": f"luca run {EXPERIMENT_FOLDER}/experiment.yaml",
        "submissionMode": "K8sJobMode",
        "backoffLimit": settings.retries,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": settings.keep_seconds,
        "submitterPodTemplate": {"spec": _submitter_pod(settings)},
        "rayClusterSpec": cluster_spec(settings, with_experiment=True),
    }
    if settings.deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = settings.deadline_seconds
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(settings, settings.name),
        "spec": spec,
    }


def ray_cluster(settings: ManifestSettings) -> Document:
    """A cluster that stays, for ``luca submit`` through a forwarded port."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(settings, f"{settings.name}-interactive"),
        "spec": cluster_spec(settings, with_experiment=False),
    }


def kueue_patch(settings: ManifestSettings) -> Document:
    """What changes under Kueue: a queue, and a cluster of fixed size, which Kueue admits as a whole."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": settings.name, "labels": {QUEUE_LABEL: settings.queue}},
        "spec": {
            "suspend": True,
            "rayClusterSpec": {
                "enableInTreeAutoscaling": False,
                "autoscalerOptions": None,
                "workerGroupSpecs": [
                    worker_group(settings, name, group, fixed=True)
                    for name, group in settings.groups.items()
                ],
            },
        },
    }


def cluster_spec(settings: ManifestSettings, *, with_experiment: bool) -> Document:
    """Head and worker groups, shared by RayJob and RayCluster."""
    return {
        "rayVersion": settings.ray_version,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": min(g.idle_seconds for g in settings.groups.values()),
            "resources": _resources("500m", "1Gi"),
            "securityContext": _container_security(),
        },
        "headGroupSpec": {
            "rayStartParams": {
                "num-cpus": "0",
                "object-store-memory": str(int(OBJECT_STORE_SHARE * quantity_bytes("2Gi"))),
            },
            "template": {"spec": _head_pod(settings, with_experiment)},
        },
        "workerGroupSpecs": [
            worker_group(settings, name, group) for name, group in settings.groups.items()
        ],
    }


def worker_group(
    settings: ManifestSettings, name: str, group: NodeGroup, *, fixed: bool = False
) -> Document:
    """One worker group; ``fixed``: always at its full size."""
    low = group.max if fixed else group.min
    store = int(OBJECT_STORE_SHARE * quantity_bytes(group.shared_memory))
    container: Document = {
        "name": "ray-worker",
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _resources(str(group.cpus), group.memory, gpus=group.gpus),
        "env": _environment(settings),
        "securityContext": _container_security(),
        "volumeMounts": _mounts(settings),
    }
    pod: Document = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": _pod_security(settings),
        "containers": [container],
        "volumes": _volumes(settings, group.shared_memory),
    }
    if isinstance(settings.storage, BucketStorage) and settings.storage.secret is None:
        del pod["automountServiceAccountToken"]
    if group.node_selector:
        pod["nodeSelector"] = dict(group.node_selector)
    if group.gpus:
        pod["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
    document: Document = {
        "groupName": name,
        "replicas": low,
        "minReplicas": low,
        "maxReplicas": group.max,
        "rayStartParams": {"object-store-memory": str(store)},
        "template": {"spec": pod},
    }
    if not fixed:
        document["idleTimeoutSeconds"] = group.idle_seconds
    return document


def _head_pod(settings: ManifestSettings, with_experiment: bool) -> Document:
    mounts, volumes = _mounts(settings), _volumes(settings, "2Gi")
    if with_experiment:
        mounts.append({"name": "experiment", "mountPath": EXPERIMENT_FOLDER, "readOnly": True})
        volumes.append({"name": "experiment", "configMap": {"name": f"{settings.name}-experiment"}})
    ports = {"gcs": 6379, "dashboard": 8265}
    return {
        "restartPolicy": "Never",
        "securityContext": _pod_security(settings),
        "containers": [
            {
                "name": "ray-head",
                "image": settings.image,
                "imagePullPolicy": "IfNotPresent",
                "ports": [{"name": n, "containerPort": port} for n, port in ports.items()],
                "resources": _resources(str(settings.head_cpus), settings.head_memory),
                "env": _environment(settings, head=True),
                "securityContext": _container_security(),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _submitter_pod(settings: ManifestSettings) -> Document:
    return {
        "restartPolicy": "Never",
        "securityContext": _pod_security(settings),
        "containers": [
            {
                "name": "submitter",
                "image": settings.image,
                "imagePullPolicy": "IfNotPresent",
                "resources": _resources("500m", "1Gi"),
                "env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
                "securityContext": _container_security(),
            }
        ],
    }


def _environment(settings: ManifestSettings, *, head: bool = False) -> list[Document]:
    storage = settings.storage
    plain = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    secrets: list[Document] = []
    if isinstance(storage, ClaimStorage):
        plain["HF_HOME"] = f"{storage.mount.rstrip('/')}/huggingface"
    else:
        if storage.region is not None:
            plain["AWS_REGION"] = storage.region
        if storage.endpoint is not None:
            plain["AWS_ENDPOINT_URL"] = storage.endpoint
        if storage.secret is not None:
            for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                secrets.append(_from_secret(key, storage.secret, optional=False))
    if head and settings.wandb_secret is not None:
        secrets.append(_from_secret("WANDB_API_KEY", settings.wandb_secret, optional=True))
    return [{"name": name, "value": value} for name, value in plain.items()] + secrets


def _from_secret(key: str, secret: str, *, optional: bool) -> Document:
    reference = {"name": secret, "key": key, "optional": optional}
    return {"name": key, "valueFrom": {"secretKeyRef": reference}}


def _mounts(settings: ManifestSettings) -> list[Document]:
    mounts: list[Document] = [
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "ray-session", "mountPath": "/tmp/ray"},
    ]
    if isinstance(settings.storage, ClaimStorage):
        mounts.append({"name": "storage", "mountPath": settings.storage.mount})
    return mounts


def _volumes(settings: ManifestSettings, shared_memory: str) -> list[Document]:
    volumes: list[Document] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}},
        {"name": "ray-session", "emptyDir": {}},
    ]
    if isinstance(settings.storage, ClaimStorage):
        claim = {"claimName": settings.storage.name}
        volumes.append({"name": "storage", "persistentVolumeClaim": claim})
    return volumes


def _resources(cpus: str, memory: str, *, gpus: int = 0) -> Document:
    amounts: Document = {"cpu": cpus, "memory": memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _pod_security(settings: ManifestSettings) -> Document:
    return {
        "runAsNonRoot": True,
        "runAsUser": settings.user,
        "runAsGroup": settings.user,
        "fsGroup": settings.user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Document:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _metadata(settings: ManifestSettings, name: str) -> Document:
    return {"name": name, "labels": {"app.kubernetes.io/part-of": settings.name}}
