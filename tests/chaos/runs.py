"""One run of a small real stream as a user starts it, and what it came to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator import results
from orchestrator.experiment import merge
from tests.chaos.processes import Process, alive, descendants, kill
from tests.helpers import write_features

ROOT = Path(__file__).parents[2]
LUCA = (sys.executable, "-m", "orchestrator.cli")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
}
QUIET = {"console": "quiet", "live_report": False, "wandb": {"mode": "disabled"}}
CLUSTER = {
    "shards": 2,
    "trainers": 2,
    "evaluators": 1,
    "tasks_in_flight": 3,
    "object_store_memory": 100 * 2**20,
}


@dataclass(frozen=True)
class Outcome:
    """What must be equal after any kills: the bank, the metrics, and every single prediction."""

    digest: str
    metrics: Mapping[str, Any]
    predictions: str

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Outcome:
        """From the JSON that ``luca run --json`` prints."""
        return cls(summary["digest"], summary["metrics"], predictions_digest(summary["run_dir"]))


@dataclass
class Finished:
    """How one invocation ended."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON it printed.

        Raises:
            AssertionError: it did not end well; with what it said.
        """
        assert self.code == 0, f"exit code {self.code}: {self.err[-3000:]}"
        value: dict[str, Any] = json.loads(self.out)
        return value


@dataclass
class Invocation:
    """A ``luca`` command that runs in a session of its own."""

    popen: subprocess.Popen[bytes]
    out: Path
    err: Path
    seen: dict[tuple[int, str], Process] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def below(self) -> list[Process]:
        """Its processes; remembered, so that they can be found when it is gone."""
        found = descendants(self.pid)
        self.seen.update({(one.pid, one.born): one for one in found})
        return found

    def survivors(self) -> list[Process]:
        """Those of the remembered processes that still run."""
        return [one for one in self.seen.values() if alive(one)]

    def surviving_actors(self) -> list[Process]:
        """Actors among them; Ray's own agents may take a minute to notice that they are alone."""
        return [one for one in self.survivors() if one.kind is not None]

    def wait(self, seconds: float = 280) -> Finished:
        """Its end.

        Raises:
            TimeoutError: it does not end; it is then killed.
        """
        try:
            code = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise TimeoutError(
                f"the run did not end within {seconds:g} s: {self.err.read_text()[-2000:]}"
            ) from None
        return Finished(code, self.out.read_text(), self.err.read_text())

    def end(self) -> None:
        """Kill it and everything below it."""
        self.below()
        self.popen.kill()
        self.popen.wait()
        for one in self.survivors():
            kill(one)


@dataclass(frozen=True)
class Place:
    """A folder with an experiment: each of its storages is a fresh start.

    Attributes:
        folder: holds the data, the experiment and the storages.
        ray: a short folder for Ray's sessions, of this place alone.
    """

    folder: Path
    ray: Path

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.yaml"

    def start(
        self, storage: str | Path, *options: str, environment: Mapping[str, str] | None = None
    ) -> Invocation:
        """Start ``luca run`` on a storage."""
        log = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))
        out, err = log / "out", log / "err"
        overrides = [f"storage={storage}", *options]
        arguments = [part for override in overrides for part in ("-o", override)]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            popen = subprocess.Popen(
                [*LUCA, "run", str(self.experiment), "--json", *arguments],
                stdout=stdout,
                stderr=stderr,
                cwd=self.folder,
                start_new_session=True,
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    "RAY_TMPDIR": str(self.ray),
                    **(environment or {}),
                },
            )
        return Invocation(popen, out, err)

    def run(self, storage: str | Path, *options: str, seconds: float = 280) -> Finished:
        """``luca run`` to its end."""
        return self.start(storage, *options).wait(seconds)


@contextmanager
def place(folder: Path, experiment: Mapping[str, Any]) -> Iterator[Place]:
    """Write an experiment into a folder; its Ray sessions are removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    ray = Path(tempfile.mkdtemp(prefix="lc-", dir="/tmp"))
    (folder / "experiment.yaml").write_text(yaml.safe_dump(dict(experiment)))
    try:
        yield Place(folder, ray)
    finally:
        shutil.rmtree(ray, ignore_errors=True)


def features_stream(
    folder: Path, *, tasks: int = 8, width: int = 16, **changes: Any
) -> dict[str, Any]:
    """Ready features of two classes a task: every kind of actor works, and no backbone makes it slow.

    From a ``width`` of about 160 on a learned task is too large to travel inside a message: it lies in the object
    store of the node that learned it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = write_features(
        folder / "features.parquet", classes=2 * tasks, width=width, train=24, test=8, spread=2.0
    )
    base: dict[str, Any] = {
        "name": "chaos",
        "recipe": "local",
        "stream": {
            "scenario": "class_incremental",
            "classes_per_task": 2,
            "validation_fraction": 0.2,
            "source": {"kind": "features", "path": str(path)},
        },
        "luca": {"ratio": 4},
        "learning": {"epochs": 4, "batch_size": 8},
        "features": {"part_size": 8},
        "evaluation": {"routers": ["lda", "batch_entropy"], "baselines": ["simplecil", "slda"]},
        "gate": {"min_accuracy": 0.1},
        "tracking": QUIET,
        "cluster": dict(CLUSTER),
    }
    return merge(base, changes)


def pictures_stream(*, per_class: int = 24, **changes: Any) -> dict[str, Any]:
    """The demo's real images, few of each class: the backbone is at work."""
    base: dict[str, Any] = {
        "name": "chaos-pictures",
        "stream": {
            "scenario": "class_incremental",
            "classes_per_task": 2,
            "max_train_per_class": per_class,
            "max_test_per_class": 8,
            "source": {"kind": "demo"},
        },
        "features": {"part_size": 8, "batch_size": 8},
        "learning": {"epochs": 4},
        "evaluation": {"routers": ["lda", "batch_entropy"], "baselines": ["simplecil", "slda"]},
        "tracking": QUIET,
        "cluster": dict(CLUSTER),
    }
    return merge(base, changes)


def predictions_digest(run_dir: str) -> str:
    """A digest of every prediction of a run, bit for bit, in an order of its own."""
    columns = [
        ("method", "ascending"),
        ("after_task", "ascending"),
        ("task", "ascending"),
        ("sample", "ascending"),
    ]
    table = results.read_predictions(run_dir)
    table = table.set_column(0, "method", table["method"].cast("string")).sort_by(columns)
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name in ("method", "sample"):
            digest.update("\0".join(column.to_pylist()).encode())
        else:
            digest.update(column.to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def versions(storage: str | Path, bank: str = "chaos") -> int:
    """How many versions a bank has; looked up without reading any."""
    return len(list((Path(storage) / "banks" / bank / "versions").glob("*.json")))


def only_bank(storage: str | Path) -> str:
    """The name of a storage's only bank; one that does not exist before there is any."""
    banks = Path(storage) / "banks"
    names = [entry.name for entry in banks.iterdir()] if banks.is_dir() else []
    return names[0] if names else "none"
