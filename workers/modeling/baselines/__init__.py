"""Baselines by name.  A new one is a file here and a line in `BASELINES`."""

from __future__ import annotations

from workers.modeling.baselines.base import Baseline, BaselineContext, BaselinePrediction
from workers.modeling.baselines.fecam import FeCam
from workers.modeling.baselines.joint_linear import JointLinear
from workers.modeling.baselines.joint_luca import JointLuca
from workers.modeling.baselines.ranpac import RanPac
from workers.modeling.baselines.sequential_linear import SequentialLinear
from workers.modeling.baselines.simplecil import SimpleCil
from workers.modeling.baselines.slda import Slda

BASELINES: dict[str, type[Baseline]] = {
    baseline.name: baseline
    for baseline in (SimpleCil, Slda, RanPac, FeCam, SequentialLinear, JointLinear, JointLuca)
}

__all__ = ["BASELINES", "Baseline", "BaselineContext", "BaselinePrediction"]
