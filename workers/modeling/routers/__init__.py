"""Routers by name.  A new one is a file here and a line in `ROUTERS`."""

from __future__ import annotations

from workers.modeling.combining import Routing
from workers.modeling.routers.base import Router, RouterInput
from workers.modeling.routers.batch_entropy import BatchEntropyRouter, ShuffledBatchEntropyRouter
from workers.modeling.routers.entropy import EntropyRouter
from workers.modeling.routers.lda import LdaRouter
from workers.modeling.routers.lda_ridge import LdaRidgeRouter
from workers.modeling.routers.oracle import OracleRouter
from workers.modeling.routers.prototype import PrototypeRouter
from workers.modeling.routers.ridge import RidgeRouter

ROUTERS: dict[str, type[Router]] = {
    router.name: router
    for router in (
        LdaRouter,
        RidgeRouter,
        LdaRidgeRouter,
        PrototypeRouter,
        EntropyRouter,
        BatchEntropyRouter,
        ShuffledBatchEntropyRouter,
        OracleRouter,
    )
}

__all__ = ["ROUTERS", "Router", "RouterInput", "Routing"]
