"""What KubeRay's operator refuses when a document has been accepted already, beside what lint.py looks at.

The schemas let these through; the operator reports them as an event of the resource, and nothing starts.  Written
from the conditions in KubeRay 1.7 (``ray-operator/controllers/ray/utils/validation.go`` and the CRDs' CEL rules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import yaml

from orchestrator.manifests.documents import Document, autoscaled, cluster_of, groups, pods

START_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")


def sidecar(document: Document) -> Iterator[str]:
    """A submitter beside the head has no pod of its own."""
    spec = document.get("spec") or {}
    if document.get("kind") != "RayJob" or spec.get("submissionMode") != "SidecarMode":
        return
    for key in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
        if spec.get(key):
            yield f"{key} cannot be used with SidecarMode"


def selected_cluster(document: Document) -> Iterator[str]:
    """A job on a cluster that is there must name it, and cannot be held back."""
    spec = document.get("spec") or {}
    selector = spec.get("clusterSelector")
    if document.get("kind") != "RayJob" or not selector:
        return
    if not selector.get("ray.io/cluster"):
        yield "clusterSelector must name the cluster: ray.io/cluster: NAME"
    if spec.get("suspend"):
        yield "suspend cannot be used with clusterSelector"


def deletion(document: Document) -> Iterator[str]:
    """A deletion strategy is either a list of rules, or says what to do on success and on failure."""
    strategy = (document.get("spec") or {}).get("deletionStrategy")
    if document.get("kind") != "RayJob" or strategy is None:
        return
    rules = strategy.get("deletionRules") or []
    legacy = [key for key in ("onSuccess", "onFailure") if key in strategy]
    if rules and legacy:
        yield f"deletionStrategy: deletionRules and {legacy[0]} exclude each other"
    elif not rules and len(legacy) < 2:
        yield "deletionStrategy needs deletionRules, or both onSuccess and onFailure"
    for rule in rules:
        condition = rule.get("condition") or {}
        if ("jobStatus" in condition) == ("jobDeploymentStatus" in condition):
            yield "deletionStrategy: each condition needs either jobStatus or jobDeploymentStatus"


def runtime_environment(document: Document) -> Iterator[str]:
    """runtimeEnvYAML is a text that must be YAML itself."""
    text = (document.get("spec") or {}).get("runtimeEnvYAML")
    if document.get("kind") != "RayJob" or not text:
        return
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        yield "runtimeEnvYAML is not a mapping in YAML"


def start_parameters(document: Document) -> Iterator[str]:
    """What a group offers is stated once, and labels have a field of their own."""
    for name, group in groups(document):
        start = group.get("rayStartParams") or {}
        if group.get("resources") and any(start.get(key) for key in START_RESOURCES):
            yield f"group {name}: state resources or rayStartParams, not both"
        if "labels" in start:
            yield f"group {name}: labels do not belong in rayStartParams: use the group's labels"
        if not ((group.get("template") or {}).get("spec") or {}).get("containers"):
            yield f"group {name}: there is no container"


def scaling(document: Document) -> Iterator[str]:
    """What the autoscaler excludes, and what makes no sense without it."""
    cluster = cluster_of(document)
    options = cluster.get("autoscalerOptions") or {}
    variables = {
        variable.get("name"): str(variable.get("value"))
        for name, pod in pods(document)
        for container in (pod.get("containers") or [])[:1]
        for variable in container.get("env") or []
        if name == "head"
    }
    if autoscaled(document):
        if "version" in options and "RAY_enable_autoscaler_v2" in variables:
            yield "autoscalerOptions.version and RAY_enable_autoscaler_v2 are both set: keep the former"
    elif variables.get("RAY_enable_autoscaler_v2") in ("1", "true"):
        yield "RAY_enable_autoscaler_v2 is set without enableInTreeAutoscaling: true"
    for group in cluster.get("workerGroupSpecs") or []:
        name = group.get("groupName", "?")
        if autoscaled(document) and group.get("suspend"):
            yield f"group {name}: suspend cannot be used with the autoscaler"
        if "idleTimeoutSeconds" in group and (
            not autoscaled(document) or options.get("version", "v2") != "v2"
        ):
            yield f"group {name}: idleTimeoutSeconds of a group needs autoscaler v2"


def external_state(document: Document) -> Iterator[str]:
    """Where the head keeps its state is said in gcsFaultToleranceOptions and nowhere else."""
    for name, pod in pods(document):
        for container in (pod.get("containers") or [])[:1] if name == "head" else []:
            for variable in container.get("env") or []:
                if variable.get("name") in ("RAY_REDIS_ADDRESS", "REDIS_USERNAME"):
                    yield f"{variable['name']} is set on the head: use gcsFaultToleranceOptions"


OPERATOR_RULES: tuple[Callable[[Document], Iterator[str]], ...] = (
    sidecar,
    selected_cluster,
    deletion,
    runtime_environment,
    start_parameters,
    scaling,
    external_state,
)
