"""A storage root: what stays inside it, what its messages say, and that it travels between processes."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.errors import StorageError
from workers.storage.atomic import write_atomic, write_exclusive, write_file
from workers.storage.filesystem import Storage, check_relative
from workers.storage.lock import BankLock


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage.open(str(tmp_path / "root"))
    return Storage.open((pafs._MockFileSystem(), "root"))


def test_what_is_written_is_read_listed_and_deleted(storage: Storage) -> None:
    write_atomic(storage, "a/b/c.bin", b"12345")
    write_atomic(storage, "a/d.bin", b"1")
    assert storage.read_bytes("a/b/c.bin") == b"12345"
    assert storage.size("a/b/c.bin") == 5
    assert [entry.path for entry in storage.list("a")] == ["a/b", "a/d.bin"]
    assert [entry.path for entry in storage.list("", recursive=True)] == [
        "a",
        "a/b",
        "a/b/c.bin",
        "a/d.bin",
    ]
    assert storage.list("a")[0].is_directory
    assert storage.delete("a/d.bin")
    assert not storage.delete("a/d.bin")
    assert not storage.exists("a/d.bin")
    assert [entry.path for entry in storage.list("a", recursive=True)] == ["a/b", "a/b/c.bin"]


def test_missing_things_are_absent_not_errors_where_absence_is_an_answer(storage: Storage) -> None:
    assert storage.list("nowhere") == []
    assert storage.read_if_exists("nowhere") is None
    assert not storage.exists("nowhere/at/all")
    assert not storage.delete("nowhere")
    with pytest.raises(StorageError, match=r"nowhere.*cannot be read"):
        storage.read_bytes("nowhere")
    with pytest.raises(StorageError, match="does not exist"):
        storage.size("nowhere")


def test_a_mapped_file_gives_its_bytes(storage: Storage) -> None:
    write_atomic(storage, "x", b"abc" * 100)
    with storage.open_mmap("x") as file:
        assert file.read_buffer().to_pybytes() == b"abc" * 100


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "a\\b", "a\nb", "a\x00b"]
)
def test_no_path_leaves_the_root(storage: Storage, path: str) -> None:
    with pytest.raises(StorageError, match="not a plain relative path"):
        storage.read_bytes(path)
    with pytest.raises(StorageError, match="not a plain relative path"):
        write_atomic(storage, path, b"")


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="./\\a\n", max_size=8))
def test_an_accepted_path_is_below_the_root_whatever_its_characters(path: str) -> None:
    try:
        check_relative(path)
    except StorageError:
        return
    assert os.path.normpath(f"/root/{path}").startswith("/root")
    assert path == "" or os.path.normpath(path) == path


def test_opening_creates_nothing(tmp_path: Path) -> None:
    Storage.open(str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []


def test_a_storage_survives_pickling(tmp_path: Path) -> None:
    write_atomic(Storage.open(str(tmp_path)), "x", b"1")
    again = pickle.loads(pickle.dumps(Storage.open(str(tmp_path))))  # noqa: S301
    assert again.read_bytes("x") == b"1"
    pair = Storage.open((pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), ""))
    assert pickle.loads(pickle.dumps(pair)).read_bytes("x") == b"1"  # noqa: S301


@pytest.mark.parametrize("form", ["plain", "file uri", "pair", "subtree"])
def test_every_way_to_name_a_local_directory_is_the_same_place(tmp_path: Path, form: str) -> None:
    root = tmp_path / "with space"
    write_atomic(Storage.open(str(root)), "x", b"1")
    where = {
        "plain": str(root),
        "file uri": root.as_uri(),
        "pair": (pafs.LocalFileSystem(), str(root)),
        "subtree": (pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "with space"),
    }[form]
    storage = Storage.open(where)
    assert storage.is_local
    assert storage.local_path("x").read_bytes() == b"1"


@pytest.mark.parametrize("where", ["", "nosuch://x/y", "file://relative", "s3://"])
def test_a_uri_that_cannot_be_used_is_refused_in_one_sentence(where: str) -> None:
    with pytest.raises(StorageError) as caught:
        Storage.open(where)
    assert "\n" not in str(caught.value)
    assert "storage" in str(caught.value)


def test_a_relative_path_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = Storage.open("out")
    monkeypatch.chdir("/")
    write_atomic(storage, "x", b"1")
    assert (tmp_path / "out" / "x").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = Storage.open(str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="cannot be written: not a directory"):
        storage.check_writable()


def test_a_probe_leaves_nothing_behind(storage: Storage) -> None:
    storage.check_writable()
    assert storage.list() == []


def test_only_local_storages_have_local_paths() -> None:
    memory = Storage.open((pafs._MockFileSystem(), ""))
    write_atomic(memory, "x", b"1")
    assert memory.read_bytes("x") == b"1"
    with pytest.raises(StorageError, match="not a local directory"):
        memory.local_path("x")


def test_arrow_files_are_read_from_the_map_without_copying(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    table = pa.table({"a": pa.array(range(1000))})

    def write(file: object) -> None:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    write_atomic(storage, "t.arrow", write)
    before = pa.total_allocated_bytes()
    read = pa.ipc.open_file(storage.open_mmap("t.arrow")).read_all()
    assert read.equals(table)
    assert pa.total_allocated_bytes() - before < table.nbytes


def test_a_missing_credential_is_one_sentence_that_says_what_to_set() -> None:
    memory = Storage.open((pafs._MockFileSystem(), "root"))

    class Refusing:
        type_name = "s3"

        def open_output_stream(self, path: str) -> None:
            raise OSError(
                "When initiating upload: AWS Error ACCESS_DENIED during PUT: no access.\nmore"
            )

    memory._fs = Refusing()  # type: ignore[assignment]
    with pytest.raises(StorageError, match=r"ACCESS_DENIED.*set AWS_ACCESS_KEY_ID") as caught:
        write_atomic(memory, "x", b"1")
    assert "\n" not in str(caught.value)


def test_a_place_that_is_read_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", read_only)
    with pytest.raises(StorageError, match="read-only file system; this user may not write here"):
        write_atomic(Storage.open(str(tmp_path)), "x", b"1")


@pytest.fixture
def nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be opened for writing, whoever asks: root is not held back by permissions."""
    real = open

    def refusing(path: str, mode: str = "r", *rest: object, **options: object) -> object:
        if "w" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, mode, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", refusing)


@pytest.mark.usefixtures("nothing_opens")
def test_a_fault_names_the_file_that_was_to_be_written_and_no_temporary(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    for write in (write_atomic, write_exclusive):
        with pytest.raises(StorageError) as caught:
            write(storage, "banks/.x.yaml", b"1")
        assert str(caught.value) == (
            f"{tmp_path}/banks/.x.yaml cannot be written: permission denied; this user may not write here: change the "
            "permissions or point `storage` elsewhere"
        )
    with pytest.raises(StorageError, match=f"^{tmp_path} cannot be written: permission denied"):
        storage.check_writable()


@pytest.mark.usefixtures("nothing_opens")
def test_a_lock_that_cannot_be_taken_names_its_folder_and_no_claim(tmp_path: Path) -> None:
    lock = BankLock(Storage.open(str(tmp_path)), "lock", what="bank 'b'")
    with pytest.raises(
        StorageError, match=f"^bank 'b' cannot be locked: {tmp_path}/lock cannot be written: perm"
    ):
        lock.acquire()


@pytest.mark.usefixtures("nothing_opens")
def test_a_file_that_the_user_named_gets_no_advice_about_the_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        write_file(tmp_path / "new.yaml", b"1")
    assert str(caught.value) == (
        f"{tmp_path}/new.yaml cannot be written: permission denied; this user may not write here: change the "
        "permissions or name a file elsewhere"
    )
