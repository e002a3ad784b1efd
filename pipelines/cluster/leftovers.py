"""Ray's session folders on this machine: who made them, and the removal of those that a killed driver left behind.

A driver that ends removes its folder.  One that is killed cannot, and logs and spilled objects would stay for good; so
every folder says whose it is, and the next local start removes those of the dead.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from workers.storage.lock import LockOwner, process_runs

PREFIX = "luca-"
OWNER = "owner.json"


def new_session_folder() -> Path:
    """A fresh folder for Ray's session, marked as this process's.

    It is short, since socket paths may have 107 bytes at most: in RAY_TMPDIR, TMPDIR or /tmp.
    """
    base = None
    for candidate in (os.environ.get("RAY_TMPDIR"), os.environ.get("TMPDIR"), "/tmp"):
        if candidate and len(candidate) <= 24 and os.access(candidate, os.W_OK):
            base = candidate
            break
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    remove_leftovers(folder.parent)
    me = LockOwner.me("")
    mark = json.dumps({"machine": me.machine, "pid": me.pid, "born": me.born})
    (folder / OWNER).write_text(mark, encoding="utf-8")
    return folder


def remove_leftovers(base: Path) -> None:
    """Remove the marked folders in ``base`` whose makers are dead; other machines' and unmarked ones stay."""
    for mark in base.glob(f"{PREFIX}*/{OWNER}"):
        if _dead(mark):
            shutil.rmtree(mark.parent, ignore_errors=True)


def _dead(mark: Path) -> bool:
    try:
        made = json.loads(mark.read_text(encoding="utf-8"))
        machine, pid, born = made["machine"], int(made["pid"]), made["born"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return process_runs(machine, pid, born) is False
