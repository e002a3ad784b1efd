"""What users get wrong with `luca bank`: one clear sentence, exit code 2, and the bank as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.commands.conftest import Answer, Luca
from tests.orchestrator.commands.learned_banks import quick_disk
from workers.storage.bank import Bank
from workers.storage.bank_writer import BankWriter

__all__ = ["quick_disk"]


def refused(said: Answer, *words: str) -> None:
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("luca: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["show", "timy"], ["no bank 'timy'", "tiny"]),
        (["show", "tiny@prod"], ["no tag 'prod'", "latest"]),
        (["show", "tiny@9"], ["no version 9", "latest is 3"]),
        (["show", "tiny@"], ["names no version"]),
        (["show", "../tiny"], ["not a usable name"]),
        (["verify", "tiny@2"], ["bank 'tiny' as a whole"]),
        (["diff", "tiny", "1", "x"], ["no tag 'x'"]),
        (["tag", "tiny", "2", "latest"], ["'latest' cannot be a tag"]),
        (["tag", "tiny", "2", "12"], ["'12' cannot be a tag"]),
        (["tag", "tiny", "2", "a/b"], ["'a/b' is not a usable name"]),
        (["tag", "tiny", "7", "t"], ["no version 7"]),
        (["untag", "tiny", "t"], ["no tag 't'"]),
        (["rollback", "tiny", "0"], ["version 0"]),
        (["fork", "tiny", "tiny"], ["'tiny' exists already"]),
        (["fork", "tiny", "new", "-o", "seed=1"], ["--settings"]),
        (["fork", "tiny", "new", "--settings", "nothing"], ["nothing"]),
        (["unlearn", "tiny"], ["--task", "--class"]),
        (["unlearn", "tiny", "--task", "a", "--class", "c01"], ["--task", "--class"]),
        (["unlearn", "tiny", "--task", "x"], ["no task 'x'", "task-00001"]),
        (["unlearn", "tiny", "--class", "x"], ["no class 'x'", "c00"]),
        (["unlearn", "tiny", "--task", "task-00000"], ["whitening", "first task"]),
        (["import", "/no/such/file", "x"], ["/no/such/file", "cannot be read"]),
    ],
)
def test_a_mistake_gets_one_sentence_and_changes_nothing(
    luca: Luca, storage: str, tiny: Bank, command: list[str], words: list[str]
) -> None:
    before = (tiny.versions(), tiny.refs(), Bank.names(tiny.storage))
    refused(luca("bank", *command, "--storage", storage), *words)
    assert (tiny.versions(), tiny.refs(), Bank.names(tiny.storage)) == before


def test_an_unknown_bank_in_an_unknown_storage_makes_neither(luca: Luca, tmp_path: Path) -> None:
    said = luca("bank", "gc", "x", "--storage", tmp_path / "none")
    refused(said, "none yet; name the storage of the run that made it (--storage DIR")
    assert not (tmp_path / "none").exists()


def test_a_file_that_exists_is_replaced_only_by_force(
    luca: Luca, storage: str, tmp_path: Path
) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    refused(luca("bank", "export", "tiny", file, "--storage", storage), "exists", "--force")
    assert file.read_text() == "mine"
    assert luca("bank", "export", "tiny", file, "--force", "--storage", storage).code == 0
    assert file.stat().st_size > 100
    refused(luca("bank", "export", "tiny", tmp_path, "--storage", storage), "is a folder")


@pytest.mark.parametrize("harm", ["flipped", "cut", "other", "empty", "pickle"])
def test_a_hostile_file_makes_no_bank(
    luca: Luca, storage: str, tiny: Bank, tmp_path: Path, harm: str
) -> None:
    file = tmp_path / "bank.safetensors"
    assert luca("bank", "export", "tiny", file, "--storage", storage).code == 0
    data = bytearray(file.read_bytes())
    data[-3] ^= 0x10
    harmed = {
        "flipped": bytes(data),
        "cut": bytes(data[: len(data) // 2]),
        "other": b"\xff" * 200,
        "empty": b"",
        "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    }
    file.write_bytes(harmed[harm])
    refused(luca("bank", "import", file, "new", "--storage", storage), str(file))
    assert Bank.names(tiny.storage) == ("tiny",)


@pytest.mark.parametrize(
    "command",
    [
        ["tag", "tiny", "1", "t"],
        ["rollback", "tiny", "1"],
        ["unlearn", "tiny", "--task", "task-00001"],
        ["gc", "tiny", "--yes"],
    ],
)
def test_a_bank_that_a_run_is_writing_is_refused_with_the_owner(
    luca: Luca, storage: str, tiny: Bank, command: list[str]
) -> None:
    with BankWriter(tiny, run="demo-0123"):
        refused(luca("bank", *command, "--storage", storage), "run demo-0123", "pid")
        assert luca("bank", "show", "tiny", "--storage", storage).code == 0
        assert "being written by" in luca("bank", "list", "--storage", storage).out
    assert luca("bank", *command, "--storage", storage).code == 0
