"""What nodes have, what actors need, and whether the one has room for the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class NodeResources:
    """What one alive node has in all (``cpus``, ``gpus``) and what of it is free now."""

    id: str
    host: str
    cpus: float
    gpus: float = 0.0
    free_cpus: float = math.inf
    free_gpus: float = math.inf
    memory: float = math.inf

    @property
    def idle(self) -> tuple[float, float]:
        """Free CPUs and GPUs."""
        return min(self.cpus, self.free_cpus), min(self.gpus, self.free_gpus)


@dataclass(frozen=True)
class ClusterResources:
    """The alive nodes.  ``local``: a Ray that this program started, on this machine alone."""

    nodes: tuple[NodeResources, ...]
    local: bool = False

    @property
    def cpus(self) -> float:
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> float:
        return sum(node.gpus for node in self.nodes)

    @property
    def memory(self) -> float:
        return sum(node.memory for node in self.nodes)

    def when_idle(self) -> ClusterResources:
        """The same nodes with everything free."""
        nodes = (replace(n, free_cpus=math.inf, free_gpus=math.inf) for n in self.nodes)
        return replace(self, nodes=tuple(nodes))


@dataclass(frozen=True)
class Bundle:
    """CPUs and GPUs that must lie on one node."""

    cpus: float
    gpus: float = 0.0

    def as_ray(self) -> dict[str, float]:
        """Ray's resource names; zero amounts left out."""
        return {k: v for k, v in (("CPU", self.cpus), ("GPU", self.gpus)) if v > 0}


class Room:
    """Free capacity during packing; a GPU is a device, so that fractions never straddle two."""

    def __init__(self, nodes: Iterable[NodeResources]) -> None:
        self._cpus: list[float] = []
        self._devices: list[list[float]] = []
        for node in nodes:
            cpus, gpus = node.idle
            whole = int(gpus + 1e-9)
            part = round(gpus - whole, 6)
            self._cpus.append(cpus)
            self._devices.append([1.0] * whole + ([part] if part > 0 else []))

    @property
    def cpus(self) -> float:
        return sum(self._cpus)

    @property
    def gpus(self) -> float:
        return sum(map(sum, self._devices))

    @property
    def largest_device(self) -> float:
        return max((d for devices in self._devices for d in devices), default=0.0)

    def take(self, bundle: Bundle) -> bool:
        """Take the bundle from one node, if one can give it.

        Nodes without a GPU are tried first for work that needs none, then those with most free CPUs,
        which is about how Ray's own scheduler spreads actors.
        """
        order = sorted(
            range(len(self._cpus)),
            key=lambda i: (not bundle.gpus and bool(self._devices[i]), -self._cpus[i], i),
        )
        for i in order:
            if self._cpus[i] + 1e-9 < bundle.cpus:
                continue
            devices = self._devices[i]
            if bundle.gpus >= 1:
                full = [j for j, d in enumerate(devices) if d >= 1 - 1e-9]
                if len(full) < bundle.gpus:
                    continue
                for j in full[: int(bundle.gpus)]:
                    devices[j] = 0.0
            elif bundle.gpus > 0:
                fitting = [j for j, d in enumerate(devices) if d + 1e-9 >= bundle.gpus]
                if not fitting:
                    continue
                devices[min(fitting, key=lambda j: devices[j])] -= bundle.gpus
            self._cpus[i] -= bundle.cpus
            return True
        return False


def unplaced(bundles: Sequence[Bundle], resources: ClusterResources) -> tuple[Bundle, ...]:
    """The bundles for which no node has room now; empty when everything can start."""
    room = Room(resources.nodes)
    return tuple(bundle for bundle in bundles if not room.take(bundle))


def amount(value: float, unit: str) -> str:
    """``1 GPU``, ``2.5 CPUs``."""
    return f"{round(value, 4):g} {unit}{'' if value == 1 else 's'}"
