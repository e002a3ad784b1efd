"""The bank on an object store: an S3 server of this test's own on loopback, reached through pyarrow."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.storage.bank_cases import BACKBONE, SETTINGS, draft, fill
from workers.errors import BankError, BankLockedError, CorruptionError, StorageError
from workers.storage.atomic import write_atomic, write_exclusive
from workers.storage.bank import Bank
from workers.storage.bank_copy import export_version, fork_bank, import_version
from workers.storage.bank_gc import collect_garbage
from workers.storage.bank_inspect import list_banks
from workers.storage.bank_verify import verify
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage
from workers.storage.lock import BankLock

pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }.items():
            patch.setenv(name, value)
        server.start()
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
        server.stop()


@pytest.fixture
def uri(endpoint: str, request: pytest.FixtureRequest) -> str:
    import boto3

    bucket = f"bucket-{abs(hash(request.node.name))}"
    client = boto3.client("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/prefix?scheme=http&endpoint_override={endpoint}&region=us-east-1"


@pytest.fixture
def storage(uri: str) -> Storage:
    return Storage.open(uri)


def test_files_are_written_listed_read_and_deleted(storage: Storage) -> None:
    storage.check_writable()
    assert storage.is_object_store
    write_atomic(storage, "a/b/c", b"123")
    assert write_exclusive(storage, "a/d", b"1")
    assert not write_exclusive(storage, "a/d", b"2")
    assert storage.read_bytes("a/d") == b"1"
    assert [e.path for e in storage.list("", recursive=True) if not e.is_directory] == [
        "a/b/c",
        "a/d",
    ]
    assert storage.size("a/b/c") == 3
    with storage.open_mmap("a/b/c") as file:
        assert file.read_buffer().to_pybytes() == b"123"
    assert storage.delete("a/d")
    assert not storage.delete("a/d")
    assert storage.delete("a/b/c")
    assert [entry for entry in storage.list("", recursive=True) if not entry.is_directory] == []
    assert "some/prefix/x" in storage.describe("x")
    assert "endpoint" not in storage.describe("x")


def test_an_upload_that_fails_half_way_never_appears(storage: Storage) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise ValueError("boom")

    write_atomic(storage, "x", b"old")
    with pytest.raises(ValueError, match="boom"):
        write_atomic(storage, "x", fail)
    with pytest.raises(ValueError, match="boom"):
        write_exclusive(storage, "y", fail)
    assert storage.read_bytes("x") == b"old"
    assert not storage.exists("y")


def test_a_storage_on_s3_survives_pickling(storage: Storage) -> None:
    write_atomic(storage, "x", b"1")
    assert pickle.loads(pickle.dumps(storage)).read_bytes("x") == b"1"  # noqa: S301


def test_a_bucket_that_is_not_there_is_one_sentence(endpoint: str) -> None:
    storage = Storage.open(
        f"s3://nowhere/x?scheme=http&endpoint_override={endpoint}&region=us-east-1"
    )
    assert Bank.names(storage) == ()
    with pytest.raises(StorageError, match="cannot be written") as caught:
        storage.check_writable()
    assert "\n" not in str(caught.value)


def test_a_bank_on_s3_has_the_digest_of_one_on_a_disk(storage: Storage, tmp_path: Path) -> None:
    remote = fill(storage, tasks=3).load()
    assert remote.digest == fill(Storage.open(str(tmp_path)), tasks=3).load().digest
    np.testing.assert_array_equal(
        remote.arrays("task-1", "head")["weight"], draft(1).arrays["head"]["weight"]
    )
    assert [bank.name for bank in list_banks(storage)] == ["b"]


def test_a_bank_on_s3_is_kept_like_any_other(storage: Storage, tmp_path: Path) -> None:
    bank = fill(storage, tasks=2)
    with BankWriter(bank, run="first") as writer:
        with pytest.raises(BankLockedError, match="run first"):
            BankWriter(bank).open()
        writer.tag("production", 1)
        writer.annotate({"x": 1}, 1)
        assert writer.unlearn_task("task-0").version == 3
        assert writer.rollback("production").version == 4
        assert writer.commit(draft(2)).version == 5
    assert bank.refs() == {"latest": 5, "production": 1}
    assert verify(bank).sound
    fork = fork_bank(bank.load(2), "fork")
    removed = collect_garbage(bank, dry_run=False, keep_versions=1)
    assert {removal.why for removal in removed.removed} == {"version", "object"}
    assert bank.versions() == (1, 5)
    assert verify(bank).sound
    assert verify(fork.bank).sound
    export_version(bank.load(), tmp_path / "export")
    assert import_version(storage, tmp_path / "export", "again").digest == bank.load().digest


def test_damage_on_s3_is_found_and_named(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    version = bank.load()
    path = f"banks/b/objects/{version.tasks[0].objects['module'].digest}"
    write_atomic(storage, path, b"damaged")
    with pytest.raises(CorruptionError, match=path):
        version.arrays("task-0", "module")
    storage.delete(path)
    with pytest.raises(CorruptionError, match=f"{path} is missing"):
        version.arrays("task-0", "module")
    assert len(verify(bank).problems) == 1


HOLD = """
import sys, time
from workers.storage.filesystem import Storage
from workers.storage.lock import BankLock
lock = BankLock(Storage.open(sys.argv[1]), "banks/b/lock", what="bank 'b'", run="elsewhere")
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_owner_s_lock_on_s3_is_taken_over(uri: str, storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, uri], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BankLockedError, match="run elsewhere"):
        BankWriter(bank).open()
    holder.kill()
    holder.wait()
    with BankWriter(bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        assert writer.commit(draft(1)).version == 2


def test_heartbeats_on_s3_count_by_the_server_s_clock(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import workers.storage.lock as lock_module

    held = BankLock(storage, "lock", what="bank 'b'")
    held.acquire()
    monkeypatch.setattr(lock_module, "_machine", lambda: "another node")
    patient = BankLock(storage, "lock", what="bank 'b'", lease=30)
    with pytest.raises(BankLockedError):
        patient.acquire()
    hasty = BankLock(storage, "lock", what="bank 'b'", lease=0)
    hasty.acquire()
    with pytest.raises(BankLockedError, match="taken over"):
        held.check()
    hasty.check()


def test_a_version_that_appeared_meanwhile_is_not_overwritten(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    with BankWriter(bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        write_atomic(storage, bank.manifest_path(2), b"foreign")
        with pytest.raises(BankError, match="appeared although"):
            writer.commit(draft(1))
    assert storage.read_bytes(bank.manifest_path(2)) == b"foreign"
