"""Our own rules for manifests: what KubeRay's schemas let through and its operator, Kueue or the run refuse.

Each rule takes one document and says in a sentence what is wrong.  The rules hold for hand-written documents
as well as for generated ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import yaml

from orchestrator.manifests.documents import (
    Document,
    autoscaled,
    cluster_of,
    containers,
    groups,
    pods,
)
from orchestrator.manifests.operator_rules import OPERATOR_RULES
from orchestrator.manifests.settings import quantity_bytes

Rule = Callable[[Document], Iterator[str]]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NAME_LENGTHS = {"RayJob": 47, "RayCluster": 53}
SUBMISSION_MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
TOKEN_SINCE = (2, 52, 0)


def lint(documents: Sequence[Document]) -> list[str]:
    """All problems of the documents, each beginning with kind and name; empty when there are none."""
    problems = [
        f"{document.get('kind')} {document.get('metadata', {}).get('name')}: {problem}"
        for document in documents
        for rule in RULES
        for problem in rule(document)
    ]
    problems += _lost_storage(documents)
    return problems


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def names(document: Document) -> Iterator[str]:
    kind, name = document.get("kind", ""), (document.get("metadata") or {}).get("name", "")
    if kind not in NAME_LENGTHS:
        return
    if len(name) > NAME_LENGTHS[kind]:
        yield f"the name has {len(name)} characters, at most {NAME_LENGTHS[kind]} are allowed"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield "the name must begin with a letter and hold a-z, 0-9 and - only"


def submission(document: Document) -> Iterator[str]:
    if document.get("kind") != "RayJob":
        return
    spec = document.get("spec") or {}
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in SUBMISSION_MODES:
        yield f"submissionMode {mode} is unknown: use one of {', '.join(SUBMISSION_MODES)}"
    if bool(spec.get("clusterSelector")) == bool(spec.get("rayClusterSpec")):
        yield "exactly one of rayClusterSpec and clusterSelector is needed"
    if mode == "InteractiveMode" and spec.get("backoffLimit"):
        yield "backoffLimit cannot be used with InteractiveMode"
    if not str(spec.get("entrypoint", "")).strip() and mode != "InteractiveMode":
        yield "entrypoint is empty"


def ending(document: Document) -> Iterator[str]:
    if document.get("kind") != "RayJob":
        return
    spec = document.get("spec") or {}
    shutdown = bool(spec.get("shutdownAfterJobFinishes"))
    rules = (spec.get("deletionStrategy") or {}).get("deletionRules") or []
    if spec.get("ttlSecondsAfterFinished") and not shutdown:
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes: true"
    if rules and shutdown:
        yield "shutdownAfterJobFinishes and deletionStrategy.deletionRules exclude each other"
    if autoscaled(document) and any(rule.get("policy") == "DeleteWorkers" for rule in rules):
        yield "deletion policy DeleteWorkers cannot be used with the autoscaler"
    if spec.get("suspend") and not shutdown:
        yield "a suspended job needs shutdownAfterJobFinishes: true"
    for key in ("backoffLimit", "ttlSecondsAfterFinished"):
        if spec.get(key, 0) < 0:
            yield f"{key} must not be negative"
    if spec.get("activeDeadlineSeconds", 1) <= 0:
        yield "activeDeadlineSeconds must be positive"


def replicas(document: Document) -> Iterator[str]:
    seen: set[str] = set()
    for group in cluster_of(document).get("workerGroupSpecs") or []:
        name = group.get("groupName", "?")
        low, high = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        if low > high:
            yield f"group {name}: minReplicas {low} exceeds maxReplicas {high}"
        elif not low <= group.get("replicas", low) <= high:
            yield f"group {name}: replicas {group['replicas']} is not between {low} and {high}"
        if name in seen:
            yield f"two worker groups are named {name}"
        seen.add(name)


def autoscaler(document: Document) -> Iterator[str]:
    if not autoscaled(document):
        return
    cluster = cluster_of(document)
    version = (cluster.get("autoscalerOptions") or {}).get("version", "v2")
    head = cluster.get("headGroupSpec") or {}
    for name, pod in pods(document):
        if version == "v2" and pod.get("restartPolicy", "Never") != "Never" and name != "submitter":
            yield f"group {name}: restartPolicy must be Never with autoscaler v2"
    if (head.get("rayStartParams") or {}).get("num-cpus") != "0":
        yield 'the head needs rayStartParams num-cpus: "0", so that only the driver runs there'


def versions(document: Document) -> Iterator[str]:
    cluster = cluster_of(document)
    if not cluster:
        return
    version = cluster.get("rayVersion", "")
    if not version:
        yield "rayVersion is missing: the operator needs it for authentication and autoscaling"
    for name, container in containers(document):
        tagged = re.search(r"ray:?-?(\d+\.\d+\.\d+)", container.get("image", "").rpartition("/")[2])
        if version and tagged and tagged[1] != version:
            yield f"group {name}: the image has Ray {tagged[1]} and rayVersion is {version}"
    token = (cluster.get("authOptions") or {}).get("mode") == "token"
    if token and version and _version(version) < TOKEN_SINCE:
        yield f"token authentication needs Ray 2.52 or later, rayVersion is {version}"
    if not token:
        yield "authOptions.mode is not token: everyone who reaches the head could run code"


def images(document: Document) -> Iterator[str]:
    found = set()
    for name, container in containers(document):
        image = container.get("image", "")
        last = image.rpartition("/")[2]
        if ":" not in last and "@" not in last:
            yield f"group {name}: image {image} has no tag, so pods could run different versions"
        elif last.endswith(":latest"):
            yield f"group {name}: image {image} is a moving tag, so pods could run different versions"
        found.add(image)
    if len(found) > 1:
        yield f"pods use different images ({', '.join(sorted(found))}): Ray needs the same everywhere"


def gpus(document: Document) -> Iterator[str]:
    for name, pod in pods(document):
        for container in pod.get("containers") or []:
            resources = container.get("resources") or {}
            limit = (resources.get("limits") or {}).get("nvidia.com/gpu")
            request = (resources.get("requests") or {}).get("nvidia.com/gpu")
            if limit is None and request is None:
                continue
            if str(limit) != str(request):
                yield f"group {name}: nvidia.com/gpu must be equal in limits and requests"
            keys = {t.get("key") for t in pod.get("tolerations") or []}
            if "nvidia.com/gpu" not in keys:
                yield f"group {name}: GPU pods need a toleration for nvidia.com/gpu"


def shared_memory(document: Document) -> Iterator[str]:
    for name, group in groups(document):
        pod = (group.get("template") or {}).get("spec") or {}
        volumes = {v.get("name"): v for v in pod.get("volumes") or []}
        for container in (pod.get("containers") or [])[:1]:
            at = {m.get("mountPath"): m.get("name") for m in container.get("volumeMounts") or []}
            memory = (volumes.get(at.get("/dev/shm")) or {}).get("emptyDir") or {}
            if memory.get("medium") != "Memory" or "sizeLimit" not in memory:
                yield f"group {name}: /dev/shm needs an emptyDir of medium Memory with a sizeLimit"
                continue
            size = quantity_bytes(str(memory["sizeLimit"]))
            limits = (container.get("resources") or {}).get("limits") or {}
            if "memory" in limits and size >= quantity_bytes(str(limits["memory"])):
                yield f"group {name}: /dev/shm is as large as the memory limit in which it counts"
            store = (group.get("rayStartParams") or {}).get("object-store-memory")
            if store is not None and int(store) > size:
                yield f"group {name}: object-store-memory exceeds /dev/shm"


def volumes(document: Document) -> Iterator[str]:
    for name, pod in pods(document):
        known = {volume.get("name") for volume in pod.get("volumes") or []}
        for container in pod.get("containers") or []:
            for mount in container.get("volumeMounts") or []:
                if mount.get("name") not in known:
                    yield f"group {name}: volume {mount.get('name')} is mounted but not defined"


def resources(document: Document) -> Iterator[str]:
    for name, container in containers(document):
        found = container.get("resources") or {}
        limits, requests = found.get("limits") or {}, found.get("requests") or {}
        if "memory" not in limits or "cpu" not in limits:
            yield f"group {name}: Ray reads CPUs and memory from the limits, and they are missing"
        elif limits["memory"] != requests.get("memory", limits["memory"]):
            yield f"group {name}: memory must be equal in limits and requests"


def secrets(document: Document) -> Iterator[str]:
    for name, container in containers(document):
        for variable in container.get("env") or []:
            if "value" in variable and SECRET_NAME.search(variable.get("name", "")):
                yield f"group {name}: {variable['name']} stands in the manifest: use a Secret"


def privileges(document: Document) -> Iterator[str]:
    for name, pod in pods(document):
        for container in pod.get("containers") or []:
            security = {
                **(pod.get("securityContext") or {}),
                **(container.get("securityContext") or {}),
            }
            if security.get("runAsNonRoot") is not True:
                yield f"group {name}: runAsNonRoot: true is missing"
            if security.get("allowPrivilegeEscalation") is not False:
                yield f"group {name}: allowPrivilegeEscalation: false is missing"


def kueue(document: Document) -> Iterator[str]:
    labels = (document.get("metadata") or {}).get("labels") or {}
    if QUEUE_LABEL not in labels:
        return
    spec = document.get("spec") or {}
    if document.get("kind") == "RayJob" and not spec.get("shutdownAfterJobFinishes"):
        yield "Kueue needs shutdownAfterJobFinishes: true"
    if spec.get("clusterSelector"):
        yield "Kueue cannot manage a job on an existing cluster (clusterSelector)"
    if autoscaled(document):
        yield "Kueue admits a cluster of fixed size: set enableInTreeAutoscaling: false"
    groups = cluster_of(document).get("workerGroupSpecs") or []
    if len(groups) > 7:
        yield f"Kueue allows 7 worker groups, there are {len(groups)}"
    if any(group.get("groupName") == "head" for group in groups):
        yield "Kueue reserves the group name head"


RULES: tuple[Rule, ...] = (
    names,
    submission,
    ending,
    replicas,
    autoscaler,
    versions,
    images,
    gpus,
    shared_memory,
    volumes,
    resources,
    secrets,
    privileges,
    kueue,
    *OPERATOR_RULES,
)


def _lost_storage(documents: Iterable[Document]) -> list[str]:
    """The experiment's storage must outlive the pods: an address, or below a claim that all pods mount."""
    documents = list(documents)
    experiments = [
        yaml.safe_load(text)
        for d in documents
        if d.get("kind") == "ConfigMap"
        for name, text in (d.get("data") or {}).items()
        if name == "experiment.yaml"
    ]
    problems = []
    for experiment in experiments:
        storage = str(experiment.get("storage", ""))
        if "://" in storage:
            continue
        for document in documents:
            for name, group in groups(document):
                pod = (group.get("template") or {}).get("spec") or {}
                if not any(storage.startswith(f"{path}/") for path in _claimed_paths(pod)):
                    problems.append(
                        f"{document['kind']} {document['metadata']['name']}: group {name}: the "
                        f"experiment's storage {storage} is not on a volume claim and would be lost"
                    )
    return problems


def _claimed_paths(pod: Document) -> list[str]:
    claims = {v.get("name") for v in pod.get("volumes") or [] if "persistentVolumeClaim" in v}
    return [
        str(mount.get("mountPath", "")).rstrip("/")
        for container in pod.get("containers") or []
        for mount in container.get("volumeMounts") or []
        if mount.get("name") in claims
    ]
