"""Runs a few lines in a Python of their own, for what happens once in a process."""

from __future__ import annotations

import subprocess
import sys


def in_fresh_python(code: str) -> str:
    """What the lines print, without white space around it."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
