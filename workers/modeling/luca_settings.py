"""Settings of LuCA modules: flow and bottlenecks, and the shapes of parameters that follow from them.

Free of torch: the command line reads it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from workers.errors import SettingsError
from workers.settings import Settings

Flow = Literal["tosca", "tosca_r", "adapter", "calibrator"]
Part = Literal["weights", "biases", "norm"]

_ADAPTER = ("norm.weight", "norm.bias", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")
_CALIBRATOR = ("se.0.weight", "se.2.weight")
PARAMETER_NAMES: dict[Flow, tuple[str, ...]] = {
    "tosca": _ADAPTER + _CALIBRATOR,
    "tosca_r": _ADAPTER + _CALIBRATOR,
    "adapter": _ADAPTER,
    "calibrator": _CALIBRATOR,
}

MOST_RANK = 65_536
"""Far beyond every backbone's width, where a bottleneck is none any more."""


class LucaSettings(Settings):
    """Shape of a LuCA module."""

    flow: Flow = Field(default="tosca", description="How adapter and calibrator are joined.")
    ratio: PositiveInt = Field(
        default=16, description="Feature width over bottleneck width, where no rank is given."
    )
    adapter_rank: PositiveInt | None = Field(
        default=None,
        le=MOST_RANK,
        description="Bottleneck width of the adapter; none: width // ratio.",
    )
    calibrator_rank: PositiveInt | None = Field(
        default=None,
        le=MOST_RANK,
        description="Bottleneck width of the calibrator; none: width // ratio.",
    )

    def ranks(self, width: int) -> tuple[int, int]:
        """Bottleneck widths (adapter, calibrator) for features of this width.

        Raises:
            SettingsError: the ratio leaves no bottleneck at this width.
        """
        if self.ratio > width and None in (self.adapter_rank, self.calibrator_rank):
            raise SettingsError(
                f"luca.ratio is {self.ratio}, which leaves no bottleneck for features of width "
                f"{width}; use a ratio of at most {width}, or set adapter_rank and calibrator_rank"
            )
        default = width // self.ratio
        return self.adapter_rank or default, self.calibrator_rank or default


def parameter_shapes(width: int, settings: LucaSettings) -> dict[str, tuple[int, ...]]:
    """Shapes of a module's parameters by name, in the order of ``PARAMETER_NAMES``."""
    adapter, calibrator = settings.ranks(width)
    shapes: dict[str, tuple[int, ...]] = {
        "norm.weight": (width,),
        "norm.bias": (width,),
        "mlp.0.weight": (adapter, width),
        "mlp.0.bias": (adapter,),
        "mlp.2.weight": (width, adapter),
        "mlp.2.bias": (width,),
        "se.0.weight": (calibrator, width),
        "se.2.weight": (width, calibrator),
    }
    return {name: shapes[name] for name in PARAMETER_NAMES[settings.flow]}
