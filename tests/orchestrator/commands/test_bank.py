"""`luca bank` on a real bank: what commands print and what they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.commands.bank.output import ago, flat, when
from tests.orchestrator.commands.conftest import Luca
from tests.orchestrator.commands.learned_banks import quick_disk
from workers.storage.bank import Bank
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

__all__ = ["quick_disk"]

HEAVY = {"torch", "ray", "pandas", "sklearn", "timm", "pyarrow", "wandb", "yaml"}


def test_list_shows_every_bank_with_its_size_and_tags(luca: Luca, storage: str, tiny: Bank) -> None:
    luca("bank", "tag", "tiny", 2, "production", "--storage", storage)
    said = luca("bank", "list", "--storage", storage)
    assert said.code == 0
    (line,) = [line for line in said.out.splitlines() if "tiny" in line]
    assert "production (2)" in line
    assert "KB" in line
    assert "ago" in line or "just now" in line


def test_list_names_what_is_wrong_with_a_damaged_bank(
    luca: Luca, storage: str, folder: Path
) -> None:
    manifest = folder / "storage" / "banks" / "tiny" / "versions" / "00000003.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    said = luca("bank", "list", "--storage", storage, "--json")
    assert said.code == 0
    assert "damaged" in json.loads(said.out)["banks"][0]["problem"]


def test_list_of_an_empty_storage_says_so_and_makes_nothing(luca: Luca, tmp_path: Path) -> None:
    said = luca("bank", "list", "--storage", tmp_path / "none")
    assert said.code == 0
    assert "no banks" in said.out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("ref", ["", "@2", "@latest"])
def test_show_tells_origin_tasks_settings_and_history(luca: Luca, storage: str, ref: str) -> None:
    said = luca("bank", "show", f"tiny{ref}", "--storage", storage)
    assert said.code == 0
    told = " ".join(said.out.split())
    for words in ("task-00001", "c00", "commit task-00002", "learning.objective local", "width 16"):
        assert words in told
    assert ("2 tasks, 4 classes" if ref == "@2" else "3 tasks, 6 classes") in said.out


def test_show_has_a_line_for_every_field_of_backbone_and_settings(luca: Luca, storage: str) -> None:
    said = luca("bank", "show", "tiny", "--storage", storage)
    lines = said.out.splitlines()
    digest, backbone, settings = (
        next(at for at, line in enumerate(lines) if line.startswith(title))
        for title in ("digest", "backbone", "settings")
    )
    assert digest < backbone < settings
    (objective,) = [line for line in lines if "learning.objective" in line]
    (flow,) = [line for line in lines if "luca.flow" in line]
    assert objective.split() == ["learning.objective", "local"]
    assert objective.index("local") == flow.index(flow.split()[-1])
    assert any(line.split() in (["width", "16"], ["backbone", "width", "16"]) for line in lines)


def test_help_does_not_promise_that_a_class_leaves_no_trace(luca: Luca) -> None:
    said = " ".join(luca("bank", "unlearn", "--help").out.replace("│", " ").split())
    assert "the module of its task was trained with it and stays" in said


def test_show_fits_a_narrow_terminal(
    luca: Luca, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in (["list"], ["show", "tiny"], ["audit", "tiny"], ["diff", "tiny", "1", "3"]):
        said = luca("bank", *command, "--storage", storage)
        tables = [line for line in said.out.splitlines() if "─" in line or "  " in line]
        assert max(map(len, tables)) <= 80, command


def test_show_lists_a_version_although_an_older_one_is_damaged(
    luca: Luca, storage: str, folder: Path
) -> None:
    manifest = folder / "storage" / "banks" / "tiny" / "versions" / "00000001.json"
    manifest.write_bytes(b"{}")
    said = luca("bank", "show", "tiny@3", "--storage", storage)
    assert said.code == 0
    assert "task-00002" in said.out
    assert "00000001.json is damaged" in said.out


def test_text_from_a_bank_cannot_move_the_cursor(luca: Luca, storage: str, tiny: Bank) -> None:
    with BankWriter(tiny) as writer:
        writer.annotate({"note\x1b[2J": "red \x1b[31m", "[bold]": "[/]"})
    said = luca("bank", "show", "tiny", "--storage", storage)
    assert said.code == 0
    assert "\x1b" not in said.out
    assert "[bold]" in said.out


def test_diff_names_tasks_and_classes(luca: Luca, storage: str) -> None:
    said = luca("bank", "diff", "tiny", 1, 3, "--storage", storage)
    assert said.code == 0
    assert "task added" in said.out
    assert "task-00002" in said.out
    same = luca("bank", "diff", "tiny", 2, 2, "--storage", storage, "--json")
    assert json.loads(same.out)["same_content"] is True


def test_a_tag_moves_and_goes(luca: Luca, storage: str, tiny: Bank) -> None:
    luca("bank", "tag", "tiny", "1", "production", "--storage", storage)
    said = luca("bank", "tag", "tiny", "latest", "production", "--storage", storage)
    assert "version 3 (was 1)" in said.out
    assert tiny.refs()["production"] == 3
    assert luca("bank", "untag", "tiny", "production", "--storage", storage).code == 0
    assert "production" not in tiny.refs()


def test_rollback_makes_a_version_and_keeps_history(luca: Luca, storage: str, tiny: Bank) -> None:
    assert luca("bank", "rollback", "tiny", "1", "--storage", storage).code == 0
    assert tiny.versions() == (1, 2, 3, 4)
    assert tiny.load().digest == tiny.load(1).digest
    again = luca("bank", "rollback", "tiny", "4", "--storage", storage)
    assert "already" in again.out
    assert tiny.latest() == 4


def test_verify_ends_with_one_and_says_what_to_do(luca: Luca, storage: str, tiny: Bank) -> None:
    assert luca("bank", "verify", "tiny", "--storage", storage).code == 0
    digest = tiny.load().tasks[1].objects["module"].digest
    path = Path(storage) / "banks" / "tiny" / "objects" / digest
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    said = luca("bank", "verify", "tiny", "--storage", storage)
    assert said.code == 1
    assert "roll back" in " ".join(said.out.split())
    as_json = luca("bank", "verify", "tiny", "--storage", storage, "--json")
    assert as_json.code == 1
    (problem,) = json.loads(as_json.out)["problems"]
    assert digest in problem["file"]
    assert "task-00001" in problem["what"]


def test_gc_says_first_and_removes_when_told(luca: Luca, storage: str, tiny: Bank) -> None:
    luca("bank", "tag", "tiny", "1", "first", "--storage", storage)
    arguments = ("bank", "gc", "tiny", "--keep-versions", 1, "--storage", storage)
    dry = luca(*arguments)
    assert dry.code == 0
    assert "--yes" in dry.out
    assert tiny.versions() == (1, 2, 3)
    assert "2 versions kept: 1, 3" in luca(*arguments, "--yes").out
    assert tiny.versions() == (1, 3)
    assert luca("bank", "verify", "tiny", "--storage", storage).code == 0


def test_an_exported_bank_comes_back_with_its_digest(
    luca: Luca, storage: str, tiny: Bank, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.safetensors"
    assert luca("bank", "export", "tiny@2", file, "--storage", storage).code == 0
    assert luca("bank", "import", file, "back", "--storage", storage).code == 0
    assert Bank.open(Storage.open(storage), "back").load().digest == tiny.load(2).digest


def test_every_command_answers_machines_with_one_object(
    luca: Luca, storage: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.safetensors"
    for command in (
        ["list"],
        ["show", "tiny@2"],
        ["diff", "tiny", 1, 2],
        ["tag", "tiny", 2, "t"],
        ["untag", "tiny", "t"],
        ["rollback", "tiny", 2],
        ["fork", "tiny@3", "copy"],
        ["unlearn", "copy", "--task", "task-00001"],
        ["verify", "tiny"],
        ["audit", "tiny"],
        ["gc", "tiny"],
        ["export", "tiny", file],
        ["import", file, "again"],
    ):
        said = luca("bank", *command, "--storage", storage, "--json")
        assert said.code == 0, (command, said.err)
        assert isinstance(json.loads(said.out), dict)
        assert said.err == ""


def test_no_command_but_class_unlearning_and_new_settings_imports_anything_heavy(
    storage: str, tmp_path: Path
) -> None:
    commands = [
        ["list"],
        ["show", "tiny"],
        ["diff", "tiny", "1", "2"],
        ["tag", "tiny", "2", "t"],
        ["rollback", "tiny", "2"],
        ["fork", "tiny@3", "copy"],
        ["unlearn", "copy", "--task", "task-00001"],
        ["verify", "tiny"],
        ["audit", "tiny"],
        ["gc", "tiny", "--yes"],
        ["export", "tiny", str(tmp_path / "x")],
        ["import", str(tmp_path / "x"), "again"],
    ]
    program = (
        "import sys, json\n"
        "from orchestrator.cli import app, guarded\n"
        "for command in json.loads(sys.argv[2]):\n"
        "    call = ['bank', *command, '--storage', sys.argv[1]]\n"
        "    assert guarded(lambda: app(args=call, standalone_mode=False)) == 0, command\n"
        f"    found = {HEAVY!r} & set(sys.modules)\n"
        "    assert not found, (command, found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, storage, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_times_and_leaves_are_told_as_people_say_them() -> None:
    from datetime import datetime, timezone

    now = datetime(2026, 1, 3, 12, 0, tzinfo=timezone.utc)
    assert ago("2026-01-03T11:59:30.000+00:00", now) == "just now"
    assert ago("2026-01-03T11:58:59+00:00", now) == "1 minute ago"
    assert ago("2025-12-31T12:00:00+00:00", now) == "3 days ago"
    assert ago("whenever", now) == "whenever"
    assert when("2026-01-03T09:00:00+00:00", now).endswith("(3 hours ago)")
    assert flat({"a": {"b": 1}, "c": [2]}) == [("a.b", 1), ("c", [2])]
