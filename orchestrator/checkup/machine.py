"""Checks of this machine: Python and packages, processors and threads, memory, shared memory, temporary space."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from orchestrator.checkup.finding import Finding, note, ok, wrong
from orchestrator.commands.text import human_bytes, plural

DISTRIBUTION = "luca-orchestrator"
_SHOWN = ("torch", "timm", "ray", "pyarrow", "numpy", "pydantic", "wandb")
_COMPILED = ("torch", "pyarrow", "ray")
_LITTLE_MEMORY = 2 * 10**9
_LITTLE_SPACE = 10**9
_CGROUP_CPUS = Path("/sys/fs/cgroup/cpu.max")


def check_python() -> Iterator[Finding]:
    """The interpreter, the packages that the program asks for, and whether the compiled ones load."""
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    missing = unmet_requirements()
    if missing:
        advice = f"install what it asks for: pip install --upgrade {DISTRIBUTION}"
        yield wrong("packages", "; ".join(missing), advice)
    else:
        shown = ", ".join(f"{name} {version_of(name)}" for name in _SHOWN)
        yield ok("packages", f"{DISTRIBUTION} {version_of(DISTRIBUTION)}; {shown}")
    for name in _COMPILED:
        reason = import_fault(name)
        if reason is not None:
            yield wrong(
                "packages",
                f"{name} is installed and cannot be imported: {reason}",
                f"install it again: pip install --force-reinstall {name}",
            )


def import_fault(package: str) -> str | None:
    """Why a package cannot be imported, None when it can or is not installed."""
    if version_of(package) is None:
        return None
    try:
        importlib.import_module(package)
    except (ImportError, OSError, RuntimeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None


def unmet_requirements(requirements: list[str] | None = None) -> list[str]:
    """Sentences about required packages that are missing or of another version; without extras.

    Args:
        requirements: in the form of PEP 508; None takes those of the installed program.
    """
    from packaging.requirements import Requirement

    if requirements is None:
        try:
            requirements = metadata.requires(DISTRIBUTION) or []
        except metadata.PackageNotFoundError:
            return [f"{DISTRIBUTION} itself is not installed, only its code is on the path"]
    problems = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = version_of(requirement.name)
        if found is None:
            problems.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(found, prereleases=True):
            problems.append(f"{requirement.name} is {found}, and {requirement.specifier} is needed")
    return problems


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_devices() -> Iterator[Finding]:
    """GPUs that torch can use."""
    import torch

    if torch.cuda.is_available():
        names = [
            f"{p.name} ({human_bytes(p.total_memory)})"
            for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
        yield ok("devices", f"torch {torch.__version__} sees {', '.join(names)}")
    elif Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        yield note(
            "devices",
            f"this machine has an NVIDIA GPU, and torch {torch.__version__} does not see it",
            "install a CUDA build of torch and a driver that suits it, or go on with the CPU",
        )
    else:
        yield ok("devices", f"no GPU; torch {torch.__version__} computes on the CPU")


def check_processors() -> Iterator[Finding]:
    """Processors this process may use, threads that the environment asks for, and how busy they are."""
    usable = usable_cpus()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > usable:
        yield note(
            "threads",
            f"OMP_NUM_THREADS is {asked}, and {usable} processors can be used",
            f"set OMP_NUM_THREADS to {usable} or leave it out: threads that wait for each other cost most of the speed",
        )
    elif asked and not asked.isdecimal():
        yield note(
            "threads", f"OMP_NUM_THREADS is {asked!r}, no number", "leave OMP_NUM_THREADS out"
        )
    else:
        threads = f"; OMP_NUM_THREADS={asked}" if asked else "; actors set their own threads"
        yield ok(
            "threads",
            f"{usable} of {plural(os.cpu_count() or 1, 'processor')} can be used{threads}",
        )
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > 2 * usable:
        yield note(
            "load",
            f"{busy:.0f} processes compete for {plural(usable, 'processor')}",
            "end what need not run, or expect a run to take several times as long",
        )


def usable_cpus(quota_file: Path = _CGROUP_CPUS) -> int:
    """Processors that affinity and the container's quota leave to this process, at least one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = quota_file.read_text().split()
        if quota != "max":
            count = min(count or 1, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no such limit on this system
    return max(1, count or 1)


def check_memory() -> Iterator[Finding]:
    """Main memory, and the shared memory that Ray's object store lives in."""
    available = available_memory()
    if available is not None and available < _LITTLE_MEMORY:
        yield note(
            "memory",
            f"{human_bytes(available)} are free",
            "set cluster.shards=1 and cluster.trainers=1, since every actor loads torch (about 500 MB)",
        )
    elif available is not None:
        yield ok("memory", f"{human_bytes(available)} are free")
    yield from check_shared_memory("/dev/shm")


def available_memory() -> int | None:
    """Bytes that new programs can have, None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    amount = values.get("MemAvailable", "").split()
    return int(amount[0]) * 1024 if amount else None


def check_shared_memory(folder: str) -> Iterator[Finding]:
    """Whether Ray's object store finds room."""
    from pipelines.cluster.settings import MINIMUM_OBJECT_STORE

    if not os.path.isdir(folder):
        yield ok("shared memory", f"no {folder} on this system; Ray uses temporary files")
        return
    usage = shutil.disk_usage(folder)
    found = f"{folder} has {human_bytes(usage.free)} free of {human_bytes(usage.total)}"
    if usage.free < MINIMUM_OBJECT_STORE:
        yield wrong(
            "shared memory",
            found,
            "Ray needs 80 MB there: in a container set --shm-size=2g; elsewhere remove what fills it",
        )
    else:
        yield ok("shared memory", found)


def check_temporary_space() -> Iterator[Finding]:
    """Room for Ray's session files."""
    folder = tempfile.gettempdir()
    usage = shutil.disk_usage(folder)
    found = f"{folder} has {human_bytes(usage.free)} free"
    if usage.free < _LITTLE_SPACE or usage.free < 0.05 * usage.total:
        yield note(
            "temporary",
            found,
            "Ray stops spilling objects on a disk that is 95 % full: free some, or set TMPDIR",
        )
    else:
        yield ok("temporary", found)
