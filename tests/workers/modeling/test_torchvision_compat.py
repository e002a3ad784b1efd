"""Importing timm: quickly, and without side effects on others."""

from __future__ import annotations

import subprocess
import sys


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_timm_does_not_import_wandb_and_leaves_it_importable() -> None:
    code = (
        "import sys; from workers.modeling.torchvision_compat import import_timm\n"
        "before = list(sys.meta_path); import_timm()\n"
        "print('wandb' in sys.modules, sys.meta_path[:len(before)] == before)\n"
        "import wandb; print(wandb.__name__)"
    )
    assert in_fresh_python(code).splitlines() == ["False True", "wandb"]


def test_another_thread_may_import_what_is_out_of_sight_meanwhile() -> None:
    code = (
        "import importlib, threading\n"
        "from workers.modeling.torchvision_compat import _out_of_sight\n"
        "found = []\n"
        "def look():\n"
        "    try: importlib.import_module('colorsys'); found.append('there')\n"
        "    except ModuleNotFoundError: found.append('absent')\n"
        "with _out_of_sight('colorsys'):\n"
        "    look()\n"
        "    thread = threading.Thread(target=look); thread.start(); thread.join()\n"
        "print(*found)"
    )
    assert in_fresh_python(code) == "absent there"
