"""What the command line imports before it knows that it needs it: neither torch nor Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workers.modeling.baseline_settings import BASELINE_SETTINGS
from workers.modeling.baselines import BASELINES
from workers.modeling.router_settings import ROUTER_SETTINGS
from workers.modeling.routers import ROUTERS

HEAVY = ("torch", "ray", "timm", "sklearn", "pandas", "wandb", "matplotlib")


@pytest.mark.parametrize(
    "module",
    [
        "orchestrator.cli",
        "orchestrator.experiment_files",
        "orchestrator.driver",
        "orchestrator.preparation",
        "orchestrator.commands.run",
        "orchestrator.commands.plan",
        "orchestrator.commands.stream_show",
        "pipelines.fleet",
        "workers.data_shard",
        "workers.evaluator",
        "workers.registry",
        "workers.trainer",
    ],
)
def test_a_module_of_the_command_line_imports_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_demo_backbone_is_checked_without_a_heavy_library() -> None:
    code = (
        "import sys\n"
        "from workers.modeling.backbone import BackboneSettings\n"
        "from workers.modeling.backbone_check import check_buildable\n"
        "check_buildable(BackboneSettings(image_size=64))\n"
        f"print(*(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_router_and_baseline_has_its_settings_under_its_name() -> None:
    assert {name: router.Options for name, router in ROUTERS.items()} == ROUTER_SETTINGS
    assert {name: method.Options for name, method in BASELINES.items()} == BASELINE_SETTINGS
