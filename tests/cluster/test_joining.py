"""Joining real clusters: a local start, an address, a job, and what must not be followed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.cluster import ClusterSettings, check_shared_storage, join_ray, plan_actors
from tests.cluster.conftest import STORE, Head
from workers.errors import ClusterError

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
LOCAL = ClusterSettings(cpus=2, object_store_memory=STORE)


def make_worker_view() -> Callable[[], dict[str, str | None]]:
    """A task that is pickled by value, since workers elsewhere do not have the tests."""

    def worker_view() -> dict[str, str | None]:
        import os

        import pipelines.cluster

        return {
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "code": str(pipelines.cluster.__file__),
        }

    return worker_view


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray's socket paths must be short, and pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="lt-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_local_start_ignores_the_trace_of_a_dead_ray_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch, short_folder: Path
) -> None:
    import ray

    trace = short_folder / "ray" / "ray_current_cluster"
    trace.parent.mkdir()
    trace.write_text("127.0.0.1:9")
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))
    with join_ray(LOCAL) as handle:
        assert handle.how == "local"
        assert handle.resources().cpus == 2
        plan = plan_actors(LOCAL, handle.resources())
        view = ray.remote(make_worker_view()).options(**plan.options("shard"))
        seen = ray.get(view.remote())
    assert seen["threads"] == "1"
    assert seen["code"] == str(ROOT / "pipelines" / "cluster" / "__init__.py")
    assert not ray.is_initialized()
    assert [entry.name for entry in short_folder.iterdir()] == ["ray"]


def test_a_callers_handler_of_sigterm_survives_joining(head: Head) -> None:
    def handler(number: int, frame: object) -> None:
        raise SystemExit(number)

    former = signal.signal(signal.SIGTERM, handler)
    try:
        with join_ray(ClusterSettings(address=head.address)):
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_ray_that_was_there_is_used_and_left_alone(head: Head) -> None:
    import ray

    with join_ray(ClusterSettings(address=head.address)) as outer:
        with join_ray(ClusterSettings(address="local")) as inner:
            assert inner.how == "present"
            assert not inner.local
        assert ray.is_initialized()
        assert outer.how == "address"
        assert outer.resources().cpus == 2
    assert not ray.is_initialized()


def test_a_driver_elsewhere_than_its_code_still_brings_it_along(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.chdir(tmp_path)
    with join_ray(ClusterSettings(address=head.address)):
        seen = ray.get(ray.remote(make_worker_view()).remote())
    assert "py_modules" in str(seen["code"])


def test_settings_of_a_local_start_do_not_disturb_joining(head: Head) -> None:
    settings = ClusterSettings(
        address=head.address, cpus=7, gpus=1, object_store_memory=STORE, dashboard=True
    )
    with join_ray(settings) as handle:
        assert handle.resources().cpus == 2


def test_one_node_needs_no_shared_storage(head: Head, tmp_path: Path) -> None:
    with join_ray(ClusterSettings(address=head.address)):
        assert check_shared_storage(str(tmp_path)) == 1


@pytest.fixture
def web_server() -> Iterator[int]:
    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_port_of_something_else_is_refused_at_once(web_server: int) -> None:
    with pytest.raises(ClusterError, match="is no Ray head"):
        join_ray(ClusterSettings(address=f"127.0.0.1:{web_server}"))


def test_another_ray_version_is_one_sentence(head: Head) -> None:
    code = (
        "import ray; ray.__version__ = '2.58.0'\n"
        "from pipelines.cluster import ClusterSettings, join_ray\n"
        "from workers.errors import ClusterError\n"
        f"try: join_ray(ClusterSettings(address='{head.address}'))\n"
        "except ClusterError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert "runs Ray 2.60" in done.stdout.replace(__import__("ray").__version__, "2.60")
    assert "this machine Ray 2.58.0" in done.stdout
