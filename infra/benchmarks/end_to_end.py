"""A whole run over one bare pass of the backbone on the same images and cores, and a re-run with a warm cache."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.benchmarks.measure import Row, cores

DEMO: dict[str, Any] = {
    "name": "demo",
    "recipe": "local",
    "stream": {
        "scenario": "class_incremental",
        "classes_per_task": 2,
        "source": {"kind": "demo"},
    },
    "backbone": {"name": "demo_vit"},
    "evaluation": {
        "routers": ["lda", "entropy", "batch_entropy", "oracle"],
        "baselines": ["simplecil", "joint_linear"],
    },
}
"""The preset ``demo``, written out."""

OTHER_SETTINGS = ["bank=again", "learning.l1=0.001", "luca.ratio=8"]
RERUN_IMAGES = 60_000
"""Images of CIFAR-100, for what a re-run comes to at full size."""


def run(*, long: bool) -> list[Row]:
    """The demo in both modes; ViT-B/16 with random weights on a few images in long mode."""
    rows = _measured("demo", DEMO, rounds=3 if long else 2, aims=(1.3, None))
    if long:
        rows += _measured("ViT-B/16", vit_base(), rounds=1, aims=(1.05, 0.02))
    return rows


def vit_base(train: int = 20, test: int = 10) -> dict[str, Any]:
    """20 classes of the demo's images at 224 pixels through a ViT-B/16 of random weights."""
    stream = {**DEMO["stream"], "max_train_per_class": train, "max_test_per_class": test}
    backbone = {"name": "vit_base_patch16_224", "weights": "random"}
    return {**DEMO, "name": "vit-base", "stream": stream, "backbone": backbone}


@dataclass(frozen=True)
class Run:
    """One invocation of ``luca run``.

    Attributes:
        wall: seconds from starting the process to its end.
        summary: what it printed.
    """

    wall: float
    summary: Mapping[str, Any]

    @property
    def stages(self) -> Mapping[str, float]:
        """Seconds by stage."""
        found: Mapping[str, float] = self.summary["seconds_by_stage"]
        return found

    @property
    def ray(self) -> float:
        """Seconds until Ray was there."""
        return self.stages["ray start"]

    @property
    def actors(self) -> float:
        """Seconds until the first actor process had imported torch and loaded the backbone."""
        return self.stages["actors and backbone"]

    @property
    def work(self) -> float:
        """Everything but starting Ray and its worker processes."""
        return self.wall - self.ray - self.actors


def _measured(
    name: str, described: Mapping[str, Any], *, rounds: int, aims: tuple[float, float | None]
) -> list[Row]:
    count = cores()
    bare: list[dict[str, float]] = []
    cold: list[Run] = []
    warm: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        file = Path(folder, "experiment.yaml")
        file.write_text(yaml.safe_dump(dict(described)))
        for number in range(rounds):
            bare.append(_bare(file, count))
            storage = Path(folder, f"storage-{number}")
            cold.append(_run(file, storage))
            warm.append(_run(file, storage, OTHER_SETTINGS))
    return _rows(name, count, bare, cold, warm, aims)


def _rows(
    name: str,
    count: int,
    bare: Sequence[Mapping[str, float]],
    cold: Sequence[Run],
    warm: Sequence[Run],
    aims: tuple[float, float | None],
) -> list[Row]:
    def median(values: Any) -> float:
        return float(statistics.median(values))

    pairs = list(zip(bare, cold, strict=True))
    last, images = cold[-1], int(bare[-1]["images"])
    seconds = median(b["bare"] for b in bare)
    wait = median(r.stages["image check"] for r in cold)
    pipeline = median(r.stages["pipeline (wall)"] - r.actors for r in cold) - wait
    before = median(r.wall - r.stages["total"] for r in cold)
    known = ("stream", "ray start", "pipeline (wall)", "report")
    leaving = median(r.stages["total"] - sum(r.stages[k] for k in known) for r in cold)
    shares = {
        "start of the program": before,
        "stream": median(r.stages["stream"] for r in cold),
        "image check": wait,
        "features, learning, evaluation side by side": pipeline,
        "stopping Ray": leaving,
        "report": median(r.stages["report"] for r in cold),
    }
    whole = sum(shares.values())
    parts = ", ".join(f"{key} {100 * value / whole:.0f} %" for key, value in shares.items())
    busy = ", ".join(
        f"{key} {median(r.stages[key] for r in cold):.1f}"
        for key in ("features", "learning", "commit", "evaluation")
    )
    speed = median(b["extraction_images_per_second"] / b["bare_images_per_second"] for b in bare)
    speed_cpu = median(b["bare_cpu"] / b["extraction_cpu"] for b in bare)
    again = median(w.work / c.work for w, c in zip(warm, cold, strict=True))
    full = median(_at_full_size(w, b, images) for w, b in zip(warm, bare, strict=True))
    return [
        Row(
            f"whole run over one bare pass, {name}",
            median(r.work / b["bare"] for b, r in pairs),
            aim=aims[0],
            note=f"{images} images on {count} cores: bare {seconds:.1f} s, run {median(r.work for r in cold):.1f} s "
            f"without starting Ray ({median(r.ray for r in cold):.1f} s) and its workers "
            f"({median(r.actors for r in cold):.1f} s: import of torch and timm, backbone)",
        ),
        Row(
            "the same with the start of Ray's workers",
            median((r.wall - r.ray) / b["bare"] for b, r in pairs),
            note="only ray.init is left out",
        ),
        Row(
            "the same with everything, over a pass that reads its images",
            median(r.wall / (b["bare"] + b["read"]) for b, r in pairs),
            note=f"a plain program that decodes and transforms takes {median(b['bare'] + b['read'] for b in bare):.1f} s",
        ),
        Row("share of the largest stage", 100 * max(shares.values()) / whole, "%", note=parts),
        Row(
            "seconds actors were busy",
            median(
                sum(r.stages[k] for k in ("features", "learning", "commit", "evaluation"))
                for r in cold
            ),
            "s",
            note=f"{busy}; {last.summary['backbone_images']} images through the backbone",
        ),
        Row(
            f"extraction over the bare pass, images/s, {name}",
            speed,
            aim=0.95,
            least=True,
            note=f"{median(b['extraction_images_per_second'] for b in bare):.1f} against "
            f"{median(b['bare_images_per_second'] for b in bare):.1f} on {count} cores, one worker each, reading, "
            f"decoding and caching included; by CPU time {speed_cpu:.3f}",
        ),
        Row(
            f"re-run with another l1 and rank over the cold run, {name}",
            again,
            aim=aims[1],
            note=f"{median(w.work for w in warm):.1f} s, {max(w.summary['backbone_images'] for w in warm)} images "
            f"through the backbone; extrapolated to {RERUN_IMAGES:,} images: {full:.4f}",
        ),
    ]


def _at_full_size(warm: Run, bare: Mapping[str, float], images: int) -> float:
    """The re-run's share of a cold run with more images: what is busy with samples grows with them, the rest stays."""
    growth = RERUN_IMAGES / images
    grows = min(warm.work, warm.stages["learning"] + warm.stages["evaluation"])
    again = warm.work + grows * (growth - 1)
    return again / (again + growth * bare["bare"])


def _bare(experiment: Path, processes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "infra.benchmarks.bare_pass", str(experiment)]
    output = subprocess.run(
        [*command, "--processes", str(processes)], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def _run(experiment: Path, storage: Path, overrides: Sequence[str] = ()) -> Run:
    changed = [f"storage={storage}", "tracking.wandb.mode=disabled", *overrides]
    command = [sys.executable, "-m", "orchestrator.cli", "run", str(experiment), "--json"]
    began = time.perf_counter()
    output = subprocess.run(
        command + [word for one in changed for word in ("-o", one)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ),
    ).stdout
    return Run(time.perf_counter() - began, json.loads(output))
