"""Settings of the cluster: how to join Ray and how many actors of each kind to run there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator

from workers.settings import Settings

Count = PositiveInt | Literal["auto"]
Auto = Literal["auto"]

MINIMUM_OBJECT_STORE = 80 * 2**20
"""Ray refuses to start with less than 75 MiB of object store."""


class ClusterSettings(Settings):
    """Where the actors run.  The defaults suit a laptop and, unchanged, a job on a cluster.

    Threads of an actor equal its CPU count, never the machine's, so that a result does not depend on
    where it was computed and processes do not fight over cores.
    """

    address: str | None = Field(
        default=None,
        description="None joins the cluster named by RAY_ADDRESS (set inside every Ray job) and "
        "starts a local Ray otherwise; 'local' always starts one; 'auto' joins the Ray running on "
        "this machine; 'host:port' joins that cluster (this machine must be one of its nodes).",
    )
    cpus: PositiveInt | None = Field(
        default=None, description="CPUs a local start offers; None: all. No effect when joining."
    )
    gpus: NonNegativeInt | None = Field(
        default=None, description="GPUs a local start offers; None: all. No effect when joining."
    )
    shards: Count = Field(default="auto", description="Data shards: they run the backbone.")
    trainers: Count = Field(default="auto", description="Trainers: they learn task modules.")
    evaluators: Count = Field(default="auto", description="Evaluators: they score the bank.")
    cpus_per_shard: PositiveInt = 1
    cpus_per_trainer: PositiveInt = 1
    cpus_per_evaluator: PositiveInt = 1
    gpus_per_shard: NonNegativeFloat | Auto = Field(
        default="auto",
        description="A whole number, or a fraction below 1 to share a GPU. 'auto': whatever the "
        "cluster's GPUs give, 0 without any. State it for a cluster that starts without GPU nodes.",
    )
    gpus_per_trainer: NonNegativeFloat = 0.0
    gpus_per_evaluator: NonNegativeFloat = 0.0
    workers_per_task: PositiveInt = Field(
        default=1,
        description="Workers that learn one task together through Ray Train, each with cpus_per_trainer "
        "and gpus_per_trainer; for tasks that take one trainer minutes. 1: one trainer a task.",
    )
    tasks_in_flight: PositiveInt = Field(
        default=2, description="Tasks that may be extracted or learned ahead of the next commit."
    )
    object_store_memory: Annotated[int, Field(ge=MINIMUM_OBJECT_STORE)] | None = Field(
        default=None,
        description="Bytes of a local start's object store; None: 30 % of free /dev/shm, at most 2 GB.",
    )
    dashboard: bool = Field(default=False, description="Dashboard of a local start, on loopback.")
    auth: Literal["auto", "disabled", "token"] = Field(
        default="auto",
        description="RAY_AUTH_MODE. 'auto': what the environment says, else 'disabled' for a local "
        "start and Ray's own rule when joining.",
    )
    connect_seconds: Annotated[float, Field(gt=0)] = Field(
        default=15.0, description="How long to try to reach an address before giving up."
    )
    wait_for_resources_seconds: NonNegativeFloat = Field(
        default=600.0, description="How long to wait for CPUs and GPUs that a cluster may yet add."
    )

    @field_validator("gpus_per_shard", "gpus_per_trainer", "gpus_per_evaluator")
    @classmethod
    def _whole_or_fraction(cls, value: float | str) -> float | str:
        if isinstance(value, float) and value > 1 and value != int(value):
            raise ValueError(
                f"{value} GPUs per actor cannot be had: use a whole number, or a fraction below 1"
            )
        return value

    @field_validator("address")
    @classmethod
    def _joinable(cls, value: str | None) -> str | None:
        if value is None or value in ("local", "auto"):
            return value
        if value.startswith("ray://"):
            raise ValueError(
                f"{value} is a Ray Client address, which cannot carry a run; submit a job instead: "
                "luca submit EXPERIMENT --address http://HEAD:8265"
            )
        if "://" in value:
            raise ValueError(
                f"{value} is the address of a dashboard, for luca submit --address; to join "
                "from a node of the cluster give HOST:PORT of its head (usually port 6379), or 'auto'"
            )
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{value!r} is not an address: use HOST:PORT, 'auto' or 'local'")
        return value
