"""Kubernetes manifests of a run, generated from settings and checked by rules of our own."""

from __future__ import annotations

from orchestrator.manifests.build import outside_mounts
from orchestrator.manifests.files import load_manifest_settings, render, write_manifests
from orchestrator.manifests.lint import lint
from orchestrator.manifests.settings import RAY_VERSION, ManifestSettings

__all__ = [
    "RAY_VERSION",
    "ManifestSettings",
    "lint",
    "load_manifest_settings",
    "outside_mounts",
    "render",
    "write_manifests",
]
