"""Submitting a Ray job to a cluster whose job agent may still be starting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from workers.errors import ClusterError

PATIENCE_SECONDS = 20.0
"""A head accepts jobs a few seconds after ``ray start`` has returned, when its dashboard agent listens."""

_NO_AGENT = "No available agent"


def submit_when_ready(
    client: Any,
    *,
    say: Callable[[str], None],
    patience: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    **job: Any,
) -> str:
    """``client.submit_job(**job)``, tried again each second while the cluster has no agent to start jobs.

    Args:
        client: a ``JobSubmissionClient``.
        say: told once that the agent is waited for.
        patience: seconds to go on trying.
        sleep: waits between tries.

    Returns:
        The job's name.

    Raises:
        ClusterError: there is no agent yet; says why that is, usually.
        RuntimeError, ValueError, OSError: the job is refused for another reason.
    """
    deadline = time.monotonic() + patience
    waiting = False
    while True:
        try:
            return str(client.submit_job(**job))
        except RuntimeError as error:
            if _NO_AGENT not in str(error):
                raise
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"the cluster has had no agent to start jobs for {patience:.0f} s: usually another Ray on the head's "
                    "machine holds the dashboard agent's port 52365; start this one with another "
                    "(ray start ... --dashboard-agent-listen-port 52399)"
                ) from error
        if not waiting:
            say("waiting for the cluster's agent that starts jobs")
            waiting = True
        sleep(1.0)
