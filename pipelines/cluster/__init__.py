"""Joining Ray, planning actors, waiting for room, and checking that storage is shared."""

from __future__ import annotations

from pipelines.cluster.capacity import Bundle, ClusterResources, NodeResources, unplaced
from pipelines.cluster.joining import RayHandle, cluster_resources, join_ray
from pipelines.cluster.placement import ActorPlan, RolePlan, plan_actors
from pipelines.cluster.settings import ClusterSettings
from pipelines.cluster.shared_storage import (
    check_job_storage,
    check_kept_storage,
    check_shared_storage,
)
from pipelines.cluster.waiting import wait_for_resources
from pipelines.cluster.watching import CapacityWatch

__all__ = [
    "ActorPlan",
    "Bundle",
    "CapacityWatch",
    "ClusterResources",
    "ClusterSettings",
    "NodeResources",
    "RayHandle",
    "RolePlan",
    "check_job_storage",
    "check_kept_storage",
    "check_shared_storage",
    "cluster_resources",
    "join_ray",
    "plan_actors",
    "unplaced",
    "wait_for_resources",
]
