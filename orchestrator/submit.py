"""`luca submit`: run an experiment as a job of a Ray cluster, and follow it from here.

Everything that can be judged on this side is judged before anything is uploaded: the experiment is
validated whole, and storage that would vanish with the job's working directory is refused.  A run resumes by
itself, so submitting again after a failure or a stop is always safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.experiment_files import load_experiment, preset_names
from orchestrator.job_agent import submit_when_ready
from pipelines.cluster import check_kept_storage
from pipelines.cluster.joining import code_root, packages
from pipelines.cluster.reaching import check_reachable
from workers.errors import ClusterError, SettingsError

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
PASSED_ON = re.compile(r"^(WANDB|LUCA)_\w+$")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
NOISY_LOGGERS = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
STOPPED_EXIT_CODE = 143
"""What a shell reports for a process ended by SIGTERM, which is what stopping a job sends."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Submitted:
    """A job and, when it was followed to its end, how it ended."""

    submission_id: str
    address: str
    status: str
    exit_code: int
    message: str = ""


def submit(
    experiment: str,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    working_dir: str | Path | None = None,
    submission_id: str | None = None,
    follow: bool = True,
    variables: Sequence[str] = (),
    say: Say = print,
    write: Say = lambda text: print(text, end="", flush=True),
    connect_seconds: float = 10.0,
) -> Submitted:
    """Submit ``luca run EXPERIMENT`` as a Ray job and, if asked, follow its log to the end.

    Args:
        experiment: a preset or an experiment file; a file travels with the job.
        overrides: ``key=value`` texts, as for ``luca run -o``.
        address: the dashboard, ``http://HEAD:8265``; None: RAY_API_SERVER_ADDRESS, RAY_ADDRESS or this
            machine.
        working_dir: a folder to upload, in which the job starts; an experiment file must lie in it.
            None uploads the experiment file alone.
        submission_id: the job's name.  While a job of that name runs it is followed instead of started
            twice; once it has ended, the next one is called ``NAME-2``, and so on.
        follow: print the log until the job ends.  Interrupting leaves the job running.
        variables: environment variables of this shell to pass on, beside ``WANDB_*`` and ``LUCA_*``.
            Secrets are passed on only when named here, since a job's variables can be read in the
            dashboard.
        say: told what is done, one sentence at a time.
        write: given the job's log as it grows.
        connect_seconds: how long to try to reach the dashboard.

    Returns:
        The job; ``exit_code`` is 0 when it was accepted and not followed.

    Raises:
        SettingsError: the experiment is wrong, or its file is not in ``working_dir``.
        ClusterError: the dashboard cannot be reached, refuses us or starts no jobs, or storage would be lost.
    """
    settings = load_experiment(experiment, overrides)
    check_kept_storage(settings.storage)
    url = dashboard_address(address, os.environ)
    client = connect(url, connect_seconds)
    passed = passed_variables(os.environ, variables)
    exposed = sorted(name for name in passed if SECRET.search(name))
    if exposed:
        say(f"passing on {', '.join(exposed)}: readable by whoever can open the dashboard")
    with _package(experiment, working_dir) as (folder, source):
        runtime_env: dict[str, Any] = {"env_vars": passed}
        if folder is not None:
            runtime_env["working_dir"] = str(folder)
        root = code_root()
        if root is not None and not (folder and (folder / "orchestrator" / "cli.py").exists()):
            runtime_env["py_modules"] = packages(root)
        command = entrypoint(source, overrides)
        name, running = _start(client, command, submission_id, runtime_env, say)
    if running:
        say(f"job {name} is running already")
    else:
        former = (
            f" after {submission_id}, and resumes it" if submission_id not in (None, name) else ""
        )
        say(f"submitted job {name} to {url}{former}")
    if not follow:
        again = follow_command(experiment, overrides, url, working_dir, name, variables)
        say(f"to follow it: {again}")
        return Submitted(name, url, "RUNNING" if running else "PENDING", 0)
    return follow_job(client, name, url, say=say, write=write)


def entrypoint(source: str, overrides: Sequence[str]) -> str:
    """The job's command line.  ``python -m`` works from an installed program and from shipped code."""
    words = ["python", "-m", "orchestrator.cli", "run", source]
    for override in overrides:
        words += ["-o", override]
    return shlex.join(words)


def follow_command(
    experiment: str,
    overrides: Sequence[str],
    url: str,
    working_dir: str | Path | None,
    name: str,
    variables: Sequence[str],
) -> str:
    """The command that follows a submitted job, whatever the shell's variables say by then.

    With the same options as before: a job is known by its command, and where it has ended meanwhile this resumes it.
    """
    words = ["luca", "submit", experiment]
    for override in overrides:
        words += ["-o", override]
    words += ["--address", url]
    if working_dir is not None:
        words += ["--working-dir", str(working_dir)]
    words += ["--submission-id", name]
    for variable in variables:
        words += ["--env", variable]
    return shlex.join(words)


def dashboard_address(address: str | None, environment: Mapping[str, str]) -> str:
    """The dashboard's URL from the option, the environment or the default.

    Raises:
        ClusterError: the address is that of Ray Client or is no address.
    """
    found = address or environment.get("RAY_API_SERVER_ADDRESS", "")
    if not found and "://" in environment.get("RAY_ADDRESS", ""):
        found = environment["RAY_ADDRESS"]
    found = re.sub(r"(?<=[^:/])/+$", "", found or DEFAULT_ADDRESS)
    if found.startswith("ray://"):
        raise ClusterError(
            f"{found} is a Ray Client address; give the dashboard's, usually http://HEAD:8265"
        )
    if "://" not in found:
        found = f"http://{found}"
    if not re.fullmatch(r"https?://[^/\s:]+(:\d+)?(/\S*)?", found):
        raise ClusterError(f"{found} is not an address; give the dashboard's: http://HEAD:8265")
    return found


def passed_variables(environment: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """The variables that travel with the job: harmless ones of W&B and ours, and those named.

    Raises:
        SettingsError: a named variable is not set.
    """
    passed = {
        name: value
        for name, value in environment.items()
        if PASSED_ON.match(name) and not SECRET.search(name) and not name.endswith("_DIR")
    }
    for name in named:
        if name not in environment:
            raise SettingsError(f"{name} is to be passed on but is not set in this shell")
        passed[name] = environment[name]
    return passed


def connect(url: str, seconds: float) -> Any:
    """A ``JobSubmissionClient`` for a dashboard that was seen to answer.

    Raises:
        ClusterError: nothing answers, it is not a Ray dashboard, it wants a token, or ``ray[default]``
            is missing here.
    """
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    if not re.search(r":\d+$", host):
        host += ":443" if scheme == "https" else ":80"
    check_reachable(host, seconds=seconds, what="dashboard (usually port 8265)")
    try:
        urllib.request.urlopen(f"{url}/api/version", timeout=seconds).close()
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            raise ClusterError(
                f"{url} answers, but not as a Ray dashboard (HTTP {error.code}); give the address of "
                "the head's dashboard, usually http://HEAD:8265"
            ) from error
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{url} is not a Ray dashboard ({error}); give the address of the head's dashboard, "
            "usually http://HEAD:8265"
        ) from error
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for logger in NOISY_LOGGERS:
        logging.getLogger(logger).setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(url)
    except AuthenticationError as error:
        raise ClusterError(
            f"{url} refuses us: set RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to "
            "the cluster's token"
        ) from error
    except (RuntimeError, ConnectionError) as error:
        if "ray[default]" in str(error):
            raise ClusterError(
                "submitting jobs needs more of Ray: pip install 'luca-orchestrator[jobs]'"
            ) from error
        raise ClusterError(f"{url} cannot be used: {' '.join(str(error).split())}") from error


@contextlib.contextmanager
def _package(experiment: str, working_dir: str | Path | None) -> Iterator[tuple[Path | None, str]]:
    """The folder to upload, if any, and the experiment as the job will name it."""
    if experiment in preset_names():
        yield (Path(working_dir).resolve() if working_dir is not None else None), experiment
        return
    file = Path(experiment).resolve()
    if working_dir is not None:
        folder = Path(working_dir).resolve()
        if not os.path.isdir(folder):
            raise SettingsError(f"--working-dir {working_dir} is not a folder")
        if not file.is_relative_to(folder):
            raise SettingsError(
                f"{experiment} is not inside --working-dir {working_dir}, so the job would not find it: "
                "move it there, or leave --working-dir out to send the file alone"
            )
        yield folder, file.relative_to(folder).as_posix()
        return
    with tempfile.TemporaryDirectory(prefix="luca-submit-") as temporary:
        shutil.copy(file, Path(temporary) / file.name)
        yield Path(temporary), file.name


def _start(
    client: Any, command: str, submission_id: str | None, runtime_env: dict[str, Any], say: Say
) -> tuple[str, bool]:
    """Submit under the first name that is free; (name, whether it was running already)."""
    known = {job.submission_id: job for job in client.list_jobs() if job.submission_id}
    name = submission_id
    number = 1
    while name is not None and name in known:
        job = known[name]
        if str(job.status) not in ENDED:
            if job.entrypoint != command:
                raise ClusterError(
                    f"job {name} is running another command ({job.entrypoint}): choose another "
                    f"--submission-id, or stop it with: ray job stop {name}"
                )
            return name, True
        number += 1
        name = f"{submission_id}-{number}"
    try:
        started = submit_when_ready(
            client, say=say, entrypoint=command, submission_id=name, runtime_env=runtime_env
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ClusterError(f"the job was not accepted: {_reason(error)}") from error
    return started, False


def follow_job(client: Any, name: str, url: str, *, say: Say, write: Say) -> Submitted:
    """Write the job's log as it grows, until the job ends; interrupting leaves it running."""
    written = 0
    try:
        while True:
            with contextlib.suppress(RuntimeError, OSError):
                written = asyncio.run(_copy_log(client, name, write, skip=written))
            status = str(_info(client, name, url).status)
            if status in ENDED:
                break
            time.sleep(1.0)
    except KeyboardInterrupt:
        say(f"job {name} goes on; stop it with: ray job stop --address {url} {name}")
        return Submitted(name, url, "RUNNING", 130)
    info = _info(client, name, url)
    message = " ".join((info.message or "").split())
    if status == "SUCCEEDED":
        code = 0
    elif status == "STOPPED":
        code = STOPPED_EXIT_CODE
    else:
        code = info.driver_exit_code or 1
        code = code if 0 < code < 256 else 1
    say(f"job {name}: {status.lower()}" + (f" (exit code {code})" if code else ""))
    return Submitted(name, url, status, code, message)


async def _copy_log(client: Any, name: str, write: Say, *, skip: int) -> int:
    """Copy the log from its start, leaving out what was written before a connection broke."""
    seen = 0
    async for text in client.tail_job_logs(name):
        fresh = text[max(skip - seen, 0) :]
        seen += len(text)
        if fresh:
            write(fresh)
    return max(seen, skip)


def _info(client: Any, name: str, url: str) -> Any:
    try:
        return client.get_job_info(name)
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"job {name} cannot be seen any more at {url}: {_reason(error)}; the run itself may go on, "
            "and submitting it again resumes it"
        ) from error


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300].rstrip(".")
