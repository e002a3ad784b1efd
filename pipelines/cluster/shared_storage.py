"""Is the storage the same on every node?

On one node any folder will do.  On several, a folder that only the driver's machine has would make each
node write a bank of its own, so it is found out before work starts: the driver leaves a token in the
storage and a task pinned to each node reads it back.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.cluster.joining import JOB_CONFIG_VARIABLE
from workers.errors import ClusterError, StorageError

PROBE_SECONDS = 60.0
RETRY_SECONDS = 0.5

UNPACKED = "runtime_resources"
"""The folder of a Ray session into which working directories of jobs are unpacked."""


def check_kept_storage(storage_uri: str) -> None:
    """Refuse storage that a job would keep in its unpacked working directory and lose with it.

    Raises:
        ClusterError: the storage is a relative path, or lies where Ray unpacks what travels with jobs.
    """
    path = storage_uri.removeprefix("file://")
    if "://" in path or path.startswith("~"):
        return
    if not path.startswith("/"):
        found = f"{storage_uri!r}, a relative path, which a job would keep in its temporary working directory"
    elif UNPACKED in Path(os.path.realpath(path)).parts:
        found = (
            f"{storage_uri}, which a job would keep in the temporary folder it was unpacked into"
        )
    else:
        return
    raise ClusterError(
        f"storage is {found} and lose: use -o storage=/shared/luca (on every node) or -o storage=s3://bucket/prefix"
    )


def check_job_storage(storage_uri: str, environment: Mapping[str, str] | None = None) -> None:
    """:func:`check_kept_storage` where this process is a Ray job's; elsewhere any storage is kept.

    Raises:
        ClusterError: the storage would be lost with the job.
    """
    if JOB_CONFIG_VARIABLE in (os.environ if environment is None else environment):
        check_kept_storage(storage_uri)


def read_token(storage_uri: str, name: str) -> str | None:
    """The token as this node sees it, or None when this node has no such file."""
    from workers.storage.filesystem import Storage

    try:
        return Storage.open(storage_uri).read_bytes(name).decode("ascii")
    except (StorageError, OSError, UnicodeDecodeError):
        return None


def check_shared_storage(storage_uri: str, *, timeout: float = PROBE_SECONDS) -> int:
    """Refuse storage that is not visible from every alive node.

    Ray must have been joined.  The check also finds nodes that lack this program or its credentials.

    Args:
        storage_uri: the experiment's storage.
        timeout: seconds for all nodes together.

    Returns:
        The number of nodes that see the storage.

    Raises:
        ClusterError: a node does not see it, and the message names the node.
        StorageError: the driver itself cannot write there.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return len(nodes)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from workers.storage.atomic import write_atomic
    from workers.storage.filesystem import Storage

    storage = Storage.open(storage_uri)
    name, token = f".probe-{secrets.token_hex(8)}", secrets.token_hex(16)
    write_atomic(storage, name, token.encode("ascii"))
    try:
        probe: Any = ray.remote(num_cpus=0, max_retries=1)(read_token)

        def ask(node: dict[str, Any]) -> Any:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            return probe.options(scheduling_strategy=pinned).remote(storage_uri, name)

        seen, deadline = 0, time.monotonic() + timeout
        pending = {ask(node): node for node in nodes}
        while pending:
            left = max(deadline - time.monotonic(), 0.0)
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=left)
            for reference in ready:
                node = pending.pop(reference)
                if _sees(storage_uri, node, reference, token):
                    seen += 1
                elif _alive(node):
                    # Ray's scheduler does not know yet of a node that has only just come.
                    time.sleep(RETRY_SECONDS)
                    pending[ask(node)] = node
            if pending and not left:
                raise ClusterError(
                    f"node {_describe(next(iter(pending.values())))} did not answer within {timeout:g} s whether it sees "
                    "the storage"
                )
    finally:
        storage.delete(name)
    return seen


def _alive(node: dict[str, Any]) -> bool:
    import ray

    return any(other["NodeID"] == node["NodeID"] and other["Alive"] for other in ray.nodes())


def _sees(storage_uri: str, node: dict[str, Any], reference: Any, token: str) -> bool:
    """Whether the node sees the storage; False when the probe found no such node.

    Raises:
        ClusterError: it does not see the storage, or cannot run this program.
    """
    import ray

    try:
        seen = ray.get(reference)
    except ray.exceptions.TaskUnschedulableError:
        return False
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"node {_describe(node)} cannot run this program: "
            f"{' '.join(str(error).split())[-200:]}; use the same image or install on every node"
        ) from error
    if seen != token:
        raise ClusterError(
            f"storage {storage_uri} is not visible on node {_describe(node)}: with several nodes it must "
            "be a shared file system mounted at the same path everywhere, or an address such as "
            "s3://bucket/prefix"
        )
    return True


def _describe(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"
