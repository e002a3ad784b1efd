"""What every actor process does first: threads as planned, denormals flushed, no pandas."""

from __future__ import annotations

from workers.imports import spare_pandas


def prepare_process(threads: int) -> None:
    """Fix torch's threads to the actor's CPU count and flush denormals.

    Two spinning threads on a busy core make the same work ten times slower, and a fixed number makes
    results the same wherever the actor runs.
    """
    spare_pandas()
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
