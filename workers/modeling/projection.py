"""Fixed random ReLU features: the non-linear feature space of the ridge router and of RanPAC.

The projection is never stored.  It is drawn anew from (seed, width, size) with NumPy's legacy generator,
whose streams are frozen for good, so the same numbers come out on every machine and in every version.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workers.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from workers.modeling.whitening import Whitening


@dataclass(frozen=True)
class ProjectionSpec:
    """What determines a random feature space: nothing else is needed to rebuild it.

    Attributes:
        seed: Seed of the run.
        width: Width d of the features that go in.
        size: Number of random features that come out.
        whitened: Whether the features are whitened before they are projected.
    """

    seed: int
    width: int
    size: int
    whitened: bool = False

    def to_array(self) -> NDArray[np.int64]:
        """The specification as int64 [4], for storage beside the sums it belongs to."""
        return np.array([self.seed, self.width, self.size, int(self.whitened)], dtype=np.int64)

    @classmethod
    def from_array(cls, array: NDArray[Any]) -> ProjectionSpec:
        """Rebuilds the specification written by `to_array`."""
        seed, width, size, whitened = (int(value) for value in array)
        return cls(seed=seed, width=width, size=size, whitened=bool(whitened))


class RandomProjection:
    """phi(x) = ReLU(z W / sqrt(width)) with W [width, size] standard normal and z the (whitened) feature.

    RanPAC, McDonnell et al., NeurIPS 2023 (the scale 1/sqrt(width) only rescales lambda).  Whitening and
    projection are one affine map, computed in float64, so that sums of phi agree to float64 round-off
    however the samples were batched.

    Args:
        spec: What to draw.
        whitening: Applied to the features first; needed exactly when ``spec.whitened``.

    Raises:
        DataError: The specification asks for whitening and none is given, or the reverse.
    """

    def __init__(self, spec: ProjectionSpec, whitening: Whitening | None = None) -> None:
        if spec.whitened != (whitening is not None):
            raise DataError(
                f"random features: the specification says whitened={spec.whitened} but "
                f"{'no whitening was' if whitening is None else 'a whitening was'} given; "
                "use the whitening that the bank stores."
            )
        self.spec = spec
        digest = hashlib.sha256(
            f"random projection {spec.seed} {spec.width} {spec.size}".encode()
        ).digest()
        generator = np.random.RandomState(np.frombuffer(digest, dtype=np.uint32))
        weights = generator.standard_normal((spec.width, spec.size)) / np.sqrt(spec.width)
        offset = np.zeros(spec.size)
        if whitening is not None:
            weights = whitening.matrix @ weights
            offset = -whitening.mean @ weights
        self._weights = torch.from_numpy(weights)
        self._offset = torch.from_numpy(offset)

    def __call__(self, features: Tensor) -> Tensor:
        """phi of raw features: [n, width] of any float type -> float64 [n, size]."""
        return torch.addmm(self._offset, features.to(torch.float64), self._weights).relu_()
