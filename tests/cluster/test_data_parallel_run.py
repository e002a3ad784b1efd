"""A whole run whose tasks are learned by two workers each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.commands.run import run_experiment
from tests.cluster.conftest import STORE
from tests.helpers import features_experiment
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

pytestmark = pytest.mark.timeout(600)


def modules(folder: Path) -> dict[str, np.ndarray]:
    version = Bank.open(Storage.open(str(folder / "storage")), "tiny").load("latest")
    found = {}
    for record in version.tasks:
        for kind in ("module", "head"):
            for name, array in version.arrays(record, kind).items():
                found[f"{record.id}.{kind}.{name}"] = array
    return found


def test_a_run_with_workers_that_learn_together_learns_the_same_bank(tmp_path: Path) -> None:
    banks = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = {
            "address": "local",
            "cpus": 4,
            "object_store_memory": STORE,
            "workers_per_task": number,
        }
        experiment = features_experiment(folder, cluster=cluster, learning={"l1": 0.0})
        run_experiment(experiment, console=False)
        banks.append(modules(folder))
    alone, together = banks
    assert alone.keys() == together.keys()
    for name, array in alone.items():
        np.testing.assert_allclose(together[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    assert any(not np.array_equal(together[name], array) for name, array in alone.items()), (
        "not one rounding differs: the workers' sums of gradients were not used"
    )
