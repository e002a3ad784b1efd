"""Settings of LuCA modules: their flow and the widths of their bottlenecks.  Free of torch: the command line reads it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from workers.errors import SettingsError
from workers.settings import Settings

Flow = Literal["tosca", "tosca_r", "adapter", "calibrator"]
Part = Literal["weights", "biases", "norm"]

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
