"""The one way into Ray, for the command line, for jobs and for tests.

Inside a Ray job, RAY_ADDRESS names the cluster; elsewhere a local Ray is started, always a fresh one
(``address="local"``), since a Ray that died leaves a file behind which a bare ``ray.init()`` would follow.
Environment variables are set before Ray is imported, because its core reads them once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import site
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pipelines.cluster.capacity import ClusterResources, NodeResources
from pipelines.cluster.finishing import finish
from pipelines.cluster.leftovers import new_session_folder
from pipelines.cluster.messages import Notify, RayMessages
from pipelines.cluster.reaching import check_reachable, check_speaks_grpc
from pipelines.cluster.settings import MINIMUM_OBJECT_STORE, ClusterSettings
from workers.errors import ClusterError, first_line

How = Literal["local", "job", "address", "present"]

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # A local start would begin with an idle worker a core.  Every actor here brings its own environment variables,
    # so none of them could ever be used.
    "RAY_prestart_worker_first_driver": "0",
    # A call with several returns fails with several errors: one is reported, Ray would print the others.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # From 2.6x on this is the default; said here so that older releases do the same without a warning.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Defaults for variables that the user has not set."""

JOB_CONFIG_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
ADDRESS_VARIABLE = "RAY_ADDRESS"
DEFAULT_OBJECT_STORE = 2 * 10**9


@dataclass(frozen=True)
class Way:
    """How this process comes to Ray: ``address`` is what ``ray.init`` is given."""

    how: How
    address: str


@dataclass
class RayHandle:
    """A joined Ray.  Leaving the context shuts down what :func:`join_ray` itself started or joined."""

    how: How
    address: str
    temporary: Path | None = None
    messages: RayMessages | None = None
    _closed: bool = field(default=False, repr=False)

    @property
    def local(self) -> bool:
        """Whether this program started the Ray and it is on this machine alone."""
        return self.how == "local"

    def resources(self) -> ClusterResources:
        """What the alive nodes have and what is free, now."""
        return cluster_resources(local=self.local)

    def close(self, *, keep_logs: bool = False) -> None:
        """Leave Ray, and stop it when it was started here.  A Ray that was there before stays."""
        if self._closed:
            return
        self._closed = True
        if self.how == "present":
            return
        finish(lambda: self._leave(keep_logs=keep_logs))

    def _leave(self, *, keep_logs: bool) -> None:
        import ray

        if self.messages is None:
            ray.shutdown()
        else:
            self.messages.during(ray.shutdown)
            self.messages.stop()
        if self.temporary is not None and not keep_logs:
            shutil.rmtree(self.temporary, ignore_errors=True)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Leave Ray in a thread of its own while the body works without it: Ray mostly waits for its processes."""
        with ThreadPoolExecutor(1, thread_name_prefix="leave-ray") as pool:
            left = pool.submit(self.close)
            yield
            left.result()

    def __enter__(self) -> RayHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def choose_way(settings: ClusterSettings, environment: Mapping[str, str]) -> Way:
    """Decide between a job's cluster, an address and a local start.  No side effects.

    Raises:
        ClusterError: RAY_ADDRESS holds something that a driver cannot join.
    """
    named = environment.get(ADDRESS_VARIABLE, "").strip()
    in_job = JOB_CONFIG_VARIABLE in environment
    if settings.address not in (None, "auto"):
        assert settings.address is not None
        if settings.address == "local":
            return Way("local", "local")
        return Way("job" if in_job and named == settings.address else "address", settings.address)
    if named == "local":
        return Way("local", "local")
    if named and named != "auto":
        if "://" in named:
            raise ClusterError(
                f"RAY_ADDRESS is {named}: a driver joins HOST:PORT, not a URL; unset RAY_ADDRESS to run "
                "here, or submit with: luca submit EXPERIMENT --address http://HEAD:8265"
            )
        return Way("job" if in_job else "address", named)
    if settings.address == "auto" or named == "auto":
        return Way("address", "auto")
    return Way("local", "local")


def environment_defaults(
    settings: ClusterSettings, way: Way, environment: Mapping[str, str]
) -> dict[str, str]:
    """Variables to set before Ray is imported; what the user has set is left alone."""
    defaults = {name: value for name, value in QUIET.items() if name not in environment}
    if settings.auth != "auto":
        defaults["RAY_AUTH_MODE"] = settings.auth
    elif way.how == "local" and "RAY_AUTH_MODE" not in environment:
        defaults["RAY_AUTH_MODE"] = "disabled"
    return defaults


def object_store_bytes(settings: ClusterSettings, shared_memory_free: int) -> int:
    """Size of a local start's object store: the setting, else 30 % of /dev/shm and at most 2 GB."""
    if settings.object_store_memory is not None:
        return settings.object_store_memory
    return max(MINIMUM_OBJECT_STORE, min(DEFAULT_OBJECT_STORE, int(0.3 * shared_memory_free)))


def code_root() -> Path | None:
    """The folder that holds our packages, or None when they are installed where every worker looks."""
    root = Path(__file__).resolve().parents[2]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    installed.update(site.getsitepackages())
    installed.add(site.getusersitepackages())
    return None if str(root) in {str(Path(p).resolve()) for p in installed if p} else root


def packages(root: Path) -> list[str]:
    """The folders of our packages in a checkout, for shipping them to other nodes."""
    return [str(root / name) for name in ("orchestrator", "pipelines", "workers")]


def runtime_env_for(
    way: Way,
    given: Mapping[str, Any] | None,
    environment: Mapping[str, str],
    root: Path | None,
) -> dict[str, Any]:
    """The runtime environment of the driver's job: one thread by default, and our code on the path.

    A local worker finds a checkout through PYTHONPATH.  Other nodes may not have the checkout, so a
    driver that joins by address ships the packages.  A job brings its own working directory, and Ray
    refuses a variable that job and driver both name, so the job's own ones are left out here.
    """
    result = dict(given or {})
    variables = {
        "OMP_NUM_THREADS": "1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        **dict(result.get("env_vars", {})),
    }
    job: dict[str, Any] = {}
    if JOB_CONFIG_VARIABLE in environment:
        job = json.loads(environment[JOB_CONFIG_VARIABLE]).get("runtime_env") or {}
    if root is not None and not job.get("working_dir") and not job.get("py_modules"):
        if way.how == "address":
            result["py_modules"] = [*result.get("py_modules", ()), *packages(root)]
        else:
            former = variables.get("PYTHONPATH", environment.get("PYTHONPATH", ""))
            parts = [str(root), *(p for p in former.split(os.pathsep) if p and p != str(root))]
            variables["PYTHONPATH"] = os.pathsep.join(parts)
    taken = job.get("env_vars") or {}
    result["env_vars"] = {name: v for name, v in variables.items() if name not in taken}
    return {name: value for name, value in result.items() if name == "env_vars" or name not in job}


def join_ray(
    settings: ClusterSettings,
    *,
    runtime_env: Mapping[str, Any] | None = None,
    notify: Notify | None = None,
) -> RayHandle:
    """Join or start Ray as the settings and the environment say.  Use as a context manager.

    A Ray that this process has joined already is used as it is, and is not shut down on leaving.

    Args:
        settings: the experiment's cluster settings.
        runtime_env: additions to the workers' runtime environment, for instance WANDB_* variables.
        notify: told in one sentence what is being joined, and later of lost workers and nodes.

    Raises:
        ClusterError: the address cannot be reached or joined, or runs another Ray or Python version.
    """
    way = choose_way(settings, os.environ)
    for name, value in environment_defaults(settings, way, os.environ).items():
        os.environ[name] = value
    import ray

    if ray.is_initialized():
        return RayHandle("present", ray.get_runtime_context().gcs_address)
    arguments: dict[str, Any] = {
        "runtime_env": runtime_env_for(way, runtime_env, os.environ, code_root()),
        "logging_level": logging.ERROR,
        "log_to_driver": False,
    }
    messages = RayMessages(notify or _ignore)
    messages.start()
    try:
        with _sigterm_kept():
            if way.how == "local":
                handle = _start_local(settings, arguments, notify)
            else:
                handle = _join(settings, way, arguments, notify)
    except BaseException:
        messages.stop()
        raise
    handle.messages = messages
    return handle


def _ignore(_: str) -> None:
    """Nobody wants to hear it."""


def _start_local(
    settings: ClusterSettings, arguments: dict[str, Any], notify: Notify | None
) -> RayHandle:
    import ray

    if notify is not None:
        notify("starting a local Ray")
    temporary = new_session_folder()
    try:
        context = ray.init(
            address="local",
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            include_dashboard=settings.dashboard,
            dashboard_host="127.0.0.1",
            object_store_memory=object_store_bytes(settings, _shared_memory_free()),
            _temp_dir=str(temporary),
            **arguments,
        )
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if _from_ray(error):
            raise ClusterError(_starting_failure(error)) from error
        raise
    if settings.dashboard and notify is not None and context.dashboard_url:
        notify(f"Ray's dashboard: http://{context.dashboard_url}")
    return RayHandle("local", context.address_info["gcs_address"], temporary)


def _join(
    settings: ClusterSettings, way: Way, arguments: dict[str, Any], notify: Notify | None
) -> RayHandle:
    import ray

    if notify is not None:
        notify(f"joining the Ray cluster at {way.address}")
    check_reachable(way.address, seconds=settings.connect_seconds)
    check_speaks_grpc(way.address, seconds=settings.connect_seconds)
    try:
        with _one_attempt():
            context = ray.init(address=way.address, **arguments)
    except Exception as error:
        if _from_ray(error):
            raise ClusterError(_joining_failure(way.address, error)) from error
        raise
    return RayHandle(way.how, context.address_info["gcs_address"])


@contextlib.contextmanager
def _one_attempt() -> Iterator[None]:
    """Let Ray try once to reach a head (about 40 s); its own twenty attempts take many minutes."""
    name = "RAY_gcs_server_port_wait_time_s"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _from_ray(error: BaseException) -> bool:
    """Whether ``ray.init`` raised it, and no signal's handler meanwhile; Ray raises plain Exceptions, too."""
    return type(error) is Exception or isinstance(error, RuntimeError | ValueError | OSError)


def _starting_failure(error: BaseException) -> str:
    if "timed out during startup" in str(error):
        return (
            "a local Ray did not start in the 30 s that it gives its own processes, so this machine is very busy: "
            "run the same command again when it is less so"
        )
    return f"a local Ray cannot be started: {first_line(error)}"


def _joining_failure(address: str, error: BaseException) -> str:
    text = " ".join(str(error).split())
    lower = text.lower()
    if "version mismatch" in lower:
        return f"{_version_sentence(address, str(error))}; install the cluster's versions here"
    if "authentication" in lower or "unauthenticated" in lower or "token" in lower:
        return (
            f"the Ray cluster at {address} wants another authentication: set RAY_AUTH_MODE=token with "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or RAY_AUTH_MODE=disabled, as its head was started"
        )
    if address == "auto":
        return (
            "cluster.address is 'auto' but no Ray runs on this machine: start one with "
            "'ray start --head', give HOST:PORT, or leave the address out to start a local Ray"
        )
    return (
        f"the Ray cluster at {address} cannot be joined: {first_line(error)} (this machine must be one of "
        "its nodes; from elsewhere use: luca submit EXPERIMENT --address http://HEAD:8265)"
    )


def _version_sentence(address: str, text: str) -> str:
    """Ray's own message lists the cluster's and then our versions over several lines."""
    cluster, _, here = text.partition("This process")

    def versions(part: str) -> str:
        lines = (line.strip() for line in part.splitlines())
        return " and ".join(
            line.replace(":", "") for line in lines if line.startswith(("Ray:", "Python:"))
        )

    return f"the Ray cluster at {address} runs {versions(cluster)}, this machine {versions(here)}"


def cluster_resources(*, local: bool = False) -> ClusterResources:
    """What Ray's alive nodes have and what is free.  Ray must have been joined."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        total, left = node["Resources"], free.get(node["NodeID"], {})
        nodes.append(
            NodeResources(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cpus=total.get("CPU", 0.0),
                gpus=total.get("GPU", 0.0),
                free_cpus=left.get("CPU", 0.0),
                free_gpus=left.get("GPU", 0.0),
                memory=total.get("memory", 0.0),
            )
        )
    return ClusterResources(tuple(sorted(nodes, key=lambda node: node.id)), local=local)


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray installs its own SIGTERM handler, which exits; a caller's handler is called instead, and given back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        if error.code == signal.SIGTERM and callable(former):
            former(signal.SIGTERM, None)
        raise
    finally:
        if callable(former):
            signal.signal(signal.SIGTERM, former)


def _shared_memory_free() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return DEFAULT_OBJECT_STORE
