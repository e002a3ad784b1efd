"""Settings of the statistics that a bank keeps of every task.  Free of torch: the command line reads it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workers.settings import Settings

Granularity = Literal["class", "task"]


class StatisticsSettings(Settings):
    """What is kept of every task for routers."""

    granularity: Granularity = Field(
        "class",
        description=(
            "Gram matrix per class (a single class can be unlearned exactly) or per task (smaller)."
        ),
    )
