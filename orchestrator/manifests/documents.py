"""Where things are in RayJob and RayCluster documents, for the rules that look at them."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def cluster_of(document: Document) -> Document:
    """The cluster's spec, empty for other kinds."""
    if document.get("kind") == "RayCluster":
        return document.get("spec") or {}
    if document.get("kind") == "RayJob":
        return (document.get("spec") or {}).get("rayClusterSpec") or {}
    return {}


def groups(document: Document) -> list[tuple[str, Document]]:
    """The groups of pods by name, the head first."""
    cluster = cluster_of(document)
    if not cluster:
        return []
    head = [("head", cluster.get("headGroupSpec") or {})]
    return head + [(g.get("groupName", "?"), g) for g in cluster.get("workerGroupSpecs") or []]


def pods(document: Document) -> list[tuple[str, Document]]:
    """The pods' specs by group; a job's submitter last."""
    found = [(name, (g.get("template") or {}).get("spec") or {}) for name, g in groups(document)]
    submitter = (document.get("spec") or {}).get("submitterPodTemplate") or {}
    if document.get("kind") == "RayJob" and submitter:
        found.append(("submitter", submitter.get("spec") or {}))
    return found


def containers(document: Document) -> list[tuple[str, Document]]:
    """All containers by group."""
    return [(name, c) for name, pod in pods(document) for c in pod.get("containers") or []]


def autoscaled(document: Document) -> bool:
    """Whether Ray's autoscaler adds and removes workers."""
    return bool(cluster_of(document).get("enableInTreeAutoscaling"))
