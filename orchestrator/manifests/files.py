"""The folder that `luca manifests` writes: a base, an overlay for Kueue, and a cluster to work with."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from orchestrator.experiment import Experiment
from orchestrator.manifests.build import (
    Document,
    config_map,
    kueue_patch,
    ray_cluster,
    ray_job,
    storage_claim,
)
from orchestrator.manifests.lint import lint
from orchestrator.manifests.settings import ManifestSettings
from orchestrator.yaml_text import Dumper, parse_yaml
from workers.errors import SettingsError

HEADER = "# Written by `luca manifests` from {source}: change the settings, not this file.\n"


def load_manifest_settings(path: str | Path) -> ManifestSettings:
    """Settings from a YAML file.

    Raises:
        SettingsError: the file cannot be read or a setting is wrong.
    """
    try:
        data = parse_yaml(Path(path).read_text("utf-8-sig"))
    except (OSError, ValueError, SettingsError) as error:
        raise SettingsError(f"{path}: the settings cannot be read ({error})") from None
    try:
        return ManifestSettings.model_validate(data or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{path}: {where}: {first['msg']}") from None


def render(
    experiment: Experiment, settings: ManifestSettings, *, source: str = "settings"
) -> dict[str, str]:
    """File names below the target folder and their text.

    Raises:
        SettingsError: the experiment does not fit the groups, or a document breaks one of our rules.
    """
    claim = storage_claim(settings)
    base: dict[str, Document] = {
        "base/experiment.yaml": config_map(experiment, settings),
        "base/rayjob.yaml": ray_job(settings),
    }
    interactive: dict[str, Document] = {"interactive/raycluster.yaml": ray_cluster(settings)}
    if claim is not None:
        base["storage/claim.yaml"] = claim
    queued = merge_patch(base["base/rayjob.yaml"], kueue_patch(settings))
    problems = lint([*base.values(), *interactive.values(), queued])
    if problems:
        raise SettingsError(f"the manifests would not work: {problems[0]}")
    storage = ["../storage"] if claim is not None else []
    kustomizations: dict[str, Document] = {
        "base/kustomization.yaml": _kustomization([*storage, "experiment.yaml", "rayjob.yaml"]),
        "interactive/kustomization.yaml": _kustomization([*storage, "raycluster.yaml"]),
        "overlays/kueue/kustomization.yaml": {
            **_kustomization(["../../base"]),
            "patches": [{"path": "rayjob-patch.yaml"}],
        },
    }
    if claim is not None:
        kustomizations["storage/kustomization.yaml"] = _kustomization(["claim.yaml"])
    patch = {"overlays/kueue/rayjob-patch.yaml": kueue_patch(settings)}
    documents = {**base, **interactive, **kustomizations, **patch}
    header = HEADER.format(source=source)
    return {name: header + to_yaml(documents[name]) for name in sorted(documents)}


def write_manifests(
    experiment: Experiment,
    settings: ManifestSettings,
    folder: str | Path,
    *,
    source: str = "settings",
) -> list[Path]:
    """Write all files below ``folder`` and return their paths.

    Raises:
        SettingsError: as :func:`render`, or the folder cannot be written.
    """
    written = []
    for name, text in render(experiment, settings, source=source).items():
        path = Path(folder) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
        written.append(path)
    return written


def merge_patch(document: Document, patch: Document) -> Document:
    """``patch`` laid over ``document`` as by JSON Merge Patch (RFC 7396), which kustomize uses for kinds
    whose schema it does not know: mappings merge, lists and scalars replace, null removes."""
    merged = dict(document)
    for key, value in patch.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge_patch(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _kustomization(resources: list[str]) -> Document:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }


class _Dumper(Dumper):
    """Block scalars for texts of several lines, and no anchors."""

    def ignore_aliases(self, _: object) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_text(value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(document: Document) -> str:
    """The document as YAML, keys in their order."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text
