"""What a Kubernetes deployment of a run looks like: image, node groups, storage, secrets, retries."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from workers.settings import Settings

RAY_VERSION = "2.60.0"
"""The Ray release that image, manifests and wheel agree on; a test compares it with the Dockerfile."""

_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity_bytes(text: str) -> int:
    """Bytes of a Kubernetes quantity such as ``8Gi``.

    Raises:
        ValueError: it is not a whole number with Ki, Mi, Gi or Ti.
    """
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", text)
    if found is None:
        raise ValueError(f"{text!r} is not an amount of memory: write 512Mi or 8Gi")
    return int(found[1]) * _UNITS[found[2]]


def _checked_quantity(text: str) -> str:
    quantity_bytes(text)
    return text


Quantity = Annotated[str, AfterValidator(_checked_quantity)]
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]


class NodeGroup(Settings):
    """Pods of one shape; Ray's autoscaler keeps their number between ``min`` and ``max``."""

    min: NonNegativeInt = 0
    max: PositiveInt = 2
    cpus: PositiveInt = 8
    gpus: NonNegativeInt = 0
    memory: Quantity = "32Gi"
    shared_memory: Quantity = Field(
        default="8Gi", description="/dev/shm, where Ray's object store lies; counts towards memory."
    )
    idle_seconds: PositiveInt = Field(default=300, description="An idle pod is given back then.")
    node_selector: dict[str, str] = Field(
        default={}, description="for instance {cloud.google.com/gke-accelerator: nvidia-l4}"
    )

    @model_validator(mode="after")
    def _consistent(self) -> NodeGroup:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}: min must not exceed max")
        if 2 * quantity_bytes(self.shared_memory) > quantity_bytes(self.memory):
            raise ValueError(
                f"shared_memory {self.shared_memory} is more than half of memory {self.memory}, in which "
                "it is counted: lower it or raise memory"
            )
        return self


class ClaimStorage(Settings):
    """A PersistentVolumeClaim that every pod mounts; the class must offer ReadWriteMany."""

    kind: Literal["claim"] = "claim"
    name: Name = "luca-storage"
    size: Quantity = "200Gi"
    storage_class: str | None = None
    mount: Annotated[str, Field(pattern=r"^/[\w./-]+$")] = "/storage"
    create: bool = Field(default=True, description="false: the claim exists already")

    @property
    def uri(self) -> str:
        """The experiment's storage."""
        return f"{self.mount.rstrip('/')}/luca"


class BucketStorage(Settings):
    """An S3 bucket.  Credentials come from a Secret, or from the pods' service account without one."""

    kind: Literal["bucket"]
    uri: Annotated[str, Field(pattern=r"^s3://[^/]+(/.*)?$")]
    secret: Name | None = Field(
        default="luca-s3",
        description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )
    region: str | None = None
    endpoint: str | None = Field(default=None, description="for MinIO, Ceph and others")


class ManifestSettings(Settings):
    """Everything that the manifests need beside the experiment."""

    name: Name = "luca"
    image: Annotated[str, Field(pattern=r"^[\w.\-/:@]+[:@][\w.\-:]+$")] = (
        f"luca:0.1.0-ray{RAY_VERSION}-cuda"
    )
    ray_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = RAY_VERSION
    user: PositiveInt = Field(default=1000, description="user and group id inside the image")
    storage: Annotated[ClaimStorage | BucketStorage, Field(discriminator="kind")] = ClaimStorage()
    head_cpus: PositiveInt = 4
    head_memory: Quantity = "16Gi"
    gpu_workers: NodeGroup | None = NodeGroup(gpus=1)
    cpu_workers: NodeGroup | None = NodeGroup(memory="16Gi", shared_memory="4Gi", max=1)
    retries: NonNegativeInt = Field(
        default=3, description="fresh clusters after a failure; each resumes from storage"
    )
    deadline_seconds: PositiveInt | None = None
    keep_seconds: NonNegativeInt = Field(
        default=600, description="how long a finished cluster stays, for a look at its logs"
    )
    wait_seconds: PositiveInt = Field(
        default=1800, description="how long a run waits for nodes before it gives up"
    )
    wandb_secret: Name | None = Field(
        default="luca-wandb", description="Secret with WANDB_API_KEY; without it W&B is offline"
    )
    queue: str = Field(
        default="luca",
        pattern=r"^[a-z0-9][-a-z0-9.]*$",
        description="Kueue LocalQueue of the overlay",
    )

    @model_validator(mode="after")
    def _some_worker(self) -> ManifestSettings:
        if self.gpu_workers is None and self.cpu_workers is None:
            raise ValueError("gpu_workers and cpu_workers are both left out: nothing could run")
        if self.gpu_workers is not None and not self.gpu_workers.gpus:
            raise ValueError("gpu_workers.gpus is 0: set it to 1, or use cpu_workers alone")
        if self.cpu_workers is not None and self.cpu_workers.gpus:
            raise ValueError("cpu_workers.gpus must be 0: describe GPU nodes in gpu_workers")
        return self

    @property
    def groups(self) -> dict[str, NodeGroup]:
        """Worker groups by name."""
        named = {"gpu": self.gpu_workers, "cpu": self.cpu_workers}
        return {name: group for name, group in named.items() if group is not None}
