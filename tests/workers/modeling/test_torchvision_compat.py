"""Importing timm: quickly, and without side effects on others."""

from __future__ import annotations

from tests.fresh_python import in_fresh_python


def test_importing_timm_does_not_import_wandb_and_leaves_it_importable() -> None:
    code = (
        "import sys; from workers.modeling.torchvision_compat import import_timm\n"
        "before = list(sys.meta_path); import_timm()\n"
        "print('wandb' in sys.modules, sys.meta_path[:len(before)] == before)\n"
        "import wandb; print(wandb.__name__)"
    )
    assert in_fresh_python(code).splitlines() == ["False True", "wandb"]
