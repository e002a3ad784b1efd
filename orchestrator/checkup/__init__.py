"""Is everything there that a run needs?  Each check says what it found and, where something is amiss, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from orchestrator.checkup.finding import Finding
from orchestrator.checkup.machine import (
    check_devices,
    check_memory,
    check_processors,
    check_temporary_space,
)
from orchestrator.checkup.services import check_ray, check_samples, check_storage, check_wandb
from orchestrator.checkup.weights import check_weights

if TYPE_CHECKING:
    from orchestrator.experiment import Experiment


def check_everything(experiment: Experiment, *, start_ray: bool) -> Iterator[Finding]:
    """Findings one by one, as they come; nothing is changed and nothing is downloaded.

    Python and packages are looked at before there can be an experiment: :func:`machine.check_python`.

    Args:
        experiment: whose storage, samples, backbone, tracking and cluster are looked at.
        start_ray: join or start Ray and ask a worker something.
    """
    source = experiment.stream.source
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_processors,
        check_memory,
        check_temporary_space,
        check_devices,
        lambda: check_storage(experiment.storage),
        lambda: check_samples(_paths(source)),
        lambda: check_weights(experiment.backbone, needed=source.kind != "features"),
        lambda: check_wandb(experiment.tracking.wandb),
        lambda: check_ray(experiment.cluster, start=start_ray),
    ]
    for check in checks:
        yield from check()


def _paths(source: object) -> list[str]:
    found: list[str] = []
    for name in ("path", "test_path", "root"):
        value = getattr(source, name, None)
        found += [value] if isinstance(value, str) else list(value or ())
    return found


__all__ = ["Finding", "check_everything"]
