"""Checks of what a run talks to: its storage, its samples, W&B and Ray."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checkup.finding import Finding, note, ok, wrong
from orchestrator.commands.text import human_bytes
from workers.errors import DataError, LucaError, StorageError
from workers.storage.filesystem import Storage
from workers.wording import plural

if TYPE_CHECKING:
    from orchestrator.tracking.tracker import WandbSettings
    from pipelines.cluster import ClusterSettings

_LITTLE_SPACE = 2 * 10**9


def check_storage(uri: str) -> Iterator[Finding]:
    """Whether the storage can be written and has room; a folder that is not there yet is not made."""
    try:
        storage = Storage.open(uri)
        if not storage.is_local or storage.local_path().exists():
            storage.check_writable()
    except StorageError as error:
        yield wrong("storage", f"{uri} cannot be used", str(error))
        return
    if not storage.is_local:
        yield ok("storage", f"{storage.describe()} can be written")
        return
    folder = storage.local_path()
    there = _nearest(folder)
    if there != folder and not _can_make(there):
        yield wrong(
            "storage",
            f"{folder} cannot be made: {there} is not a folder that this user may write to",
            "set storage to another folder (-o storage=DIR), or change the permissions",
        )
        return
    free = shutil.disk_usage(there).free
    state = "can be written" if there == folder else "will be made"
    found = f"{folder} {state}, {human_bytes(free)} free"
    if free < _LITTLE_SPACE:
        yield note(
            "storage", found, "features of 100,000 images of width 768 take 307 MB; free some space"
        )
    else:
        yield ok("storage", found)


def check_samples(paths: list[str]) -> Iterator[Finding]:
    """Whether the paths that the experiment's source names are there."""
    from pipelines.sources.files import kind_of, missing_message

    for path in paths:
        try:
            if kind_of(path) == "missing":
                yield wrong(
                    "samples",
                    missing_message(path, what="file or folder"),
                    "set stream.source.path",
                )
            else:
                yield ok("samples", f"{path} is there; luca stream show looks inside")
        except DataError as error:
            yield wrong("samples", str(error), "check the address and the credentials for it")


def check_wandb(settings: WandbSettings) -> Iterator[Finding]:
    """How runs will be tracked; whether there is a key, never which."""
    from orchestrator.checkup.machine import version_of
    from orchestrator.tracking.wandb_tracker import has_credentials, wanted_mode

    mode, key = wanted_mode(settings), has_credentials()
    version = version_of("wandb")
    if mode == "disabled":
        yield ok("wandb", "off")
    elif version is None:
        yield wrong(
            "wandb", "not installed", "pip install wandb, or set tracking.wandb.mode=disabled"
        )
    elif mode == "online" and not key:
        yield note(
            "wandb",
            "online is asked for and no API key was found, so runs are recorded offline",
            "run `wandb login`, or set WANDB_API_KEY",
        )
    else:
        found = "an API key was found" if key else "no API key, which offline needs not"
        yield ok("wandb", f"{version}, runs are recorded {mode}; {found}")


def check_ray(settings: ClusterSettings, *, start: bool) -> Iterator[Finding]:
    """Whether Ray could be joined or started, or (``start``) whether it really can."""
    from orchestrator.checkup.machine import version_of
    from pipelines.cluster.joining import choose_way
    from pipelines.cluster.reaching import check_reachable

    try:
        way = choose_way(settings, os.environ)
        if way.how != "local":
            check_reachable(way.address, seconds=settings.connect_seconds)
    except LucaError as error:
        yield wrong("ray", "the cluster cannot be joined", str(error))
        return
    how = "a local Ray would be started" if way.how == "local" else f"{way.address} answers"
    if not start:
        yield ok("ray", f"{version_of('ray')}; {how}; luca doctor --ray tries it")
        return
    yield _really_join(settings)


def _really_join(settings: ClusterSettings) -> Finding:
    from pipelines.cluster import join_ray

    started = time.perf_counter()
    try:
        with join_ray(settings) as handle:
            import ray

            seconds = time.perf_counter() - started
            resources = handle.resources()
            ray.get(ray.remote(num_cpus=0)(_answer).remote(), timeout=120)
            cpus = sum(node.cpus for node in resources.nodes)
            gpus = sum(node.gpus for node in resources.nodes)
    except LucaError as error:
        return wrong("ray", "Ray cannot be started or joined", str(error))
    except _ray_errors() as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return wrong(
            "ray", "Ray starts, but no worker answers", f"look at its logs under /tmp/ray: {first}"
        )
    return ok(
        "ray",
        f"up after {seconds:.0f} s: {plural(cpus, 'CPU')} and {plural(gpus, 'GPU')}, and a worker answers",
    )


def _answer() -> bool:
    return True


def _ray_errors() -> tuple[type[BaseException], ...]:
    import ray

    return (ray.exceptions.RayError, TimeoutError)


def _can_make(folder: Path) -> bool:
    """Whether a folder can be made in this one, found out by making one and taking it away."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".luca-", dir=folder))
    except OSError:
        return False
    return True


def _nearest(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
