"""One bare timm forward pass over a stream's images, on one or several cores, beside the program's own extraction.

    python -m infra.benchmarks.bare_pass EXPERIMENT.yaml --processes 2

Every process takes part after part of the stream, as data shards do, and with each part takes turns between the bare
pass (``forward_features`` on float tensors that lie ready, in batches, inference mode) and extraction (read, decode,
transform, normalise, backbone, cache): both meet the same disturbances.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Measure in as many processes as asked for, all at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(arguments.processes)
    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        work = [
            (arguments.experiment.read_text(), number, arguments.processes, f"{folder}/{number}")
            for number in range(arguments.processes)
        ]
        with context.Pool(arguments.processes, _share_barrier, (barrier,)) as pool:
            shares = pool.map(_share, work, chunksize=1)
    print(json.dumps({"processes": arguments.processes, **_together(shares)}))


def _together(shares: list[dict[str, float]]) -> dict[str, float]:
    """All images; the slowest process decides on the clock, and the speeds of all add up."""
    result = {"images": sum(share["images"] for share in shares)}
    for kind in ("bare", "bare_cpu", "read", "extraction", "extraction_cpu"):
        result[kind] = max(share[kind] for share in shares)
        result[f"{kind}_images_per_second"] = sum(share["images"] / share[kind] for share in shares)
    return result


_barrier: Any = None


def _share_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _share(work: tuple[str, int, int, str]) -> dict[str, float]:
    """Every n-th part in one process of one thread."""
    text, number, processes, folder = work
    import torch
    import yaml

    from infra.benchmarks.in_process import Stages
    from workers.extraction import PartRequest
    from workers.runtime import prepare_process

    prepare_process(1)
    described = yaml.safe_load(text)
    described.pop("name", None)
    stages = Stages.of(Path(folder), described)
    plan, extractor = stages.prepared.plan, stages.extractor
    model: Any = extractor._backbone._model  # type: ignore[union-attr]
    batch = stages.prepared.experiment.features.batch_size
    seconds = dict.fromkeys(("bare", "bare_cpu", "read", "extraction", "extraction_cpu"), 0.0)
    images = 0
    _barrier.wait()
    for position in range(number, len(plan.parts), processes):
        samples = plan.samples_of(position)
        began = time.perf_counter()
        pixels = _pixels(extractor, samples)
        seconds["read"] += time.perf_counter() - began
        images += len(pixels)
        if position == number:
            with torch.inference_mode():  # the first call sets buffers up
                model.forward_features(pixels[:batch])
        clock, process = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            for part in torch.split(pixels, batch):
                model.forward_features(part)[:, 0].numpy()
        seconds["bare"] += time.perf_counter() - clock
        seconds["bare_cpu"] += time.process_time() - process
        clock, process = time.perf_counter(), time.process_time()
        extractor.extract(PartRequest(samples))
        seconds["extraction"] += time.perf_counter() - clock
        seconds["extraction_cpu"] += time.process_time() - process
    return {"images": images, **seconds}


def _pixels(extractor: Any, samples: Any) -> Any:
    """The part's images as a plain program reads them: float32 [n, 3, h, w], normalised."""
    import numpy as np
    import torch

    from workers.modeling.images import decode

    transform = extractor._backbone.transform
    pictures = extractor._reader.read(samples)
    views = [np.asarray(transform.test(decode(p, str(i)))) for i, p in enumerate(pictures)]
    pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float().div_(255)
    mean = torch.tensor(transform.mean).view(1, 3, 1, 1)
    std = torch.tensor(transform.std).view(1, 3, 1, 1)
    return (pixels - mean) / std


if __name__ == "__main__":
    main()
