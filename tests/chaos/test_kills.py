"""SIGKILL for every kind of process: the run goes on, or the same command does, to the same bank and predictions."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.conftest import TASKS, run_here
from tests.chaos.endure import Kill, endure, killing
from tests.chaos.processes import ACTORS, wait_until
from tests.chaos.runs import ENVIRONMENT, ROOT, Outcome, Place, versions

LOOK = """
import os, sys, time
from workers.errors import BankLockedError
from workers.storage.bank import Bank
from workers.storage.bank_gc import collect_garbage
from workers.storage.filesystem import Storage

what, storage, stop = sys.argv[1], Storage.open(sys.argv[2]), sys.argv[3]
bank = Bank.open_or_create(storage, "chaos")
seen, refused, done = [], 0, 0
while not os.path.exists(stop):
    if bank.latest() is None:
        time.sleep(0.01)
        continue
    if what == "read":
        version = bank.load("latest")
        for record in version.tasks:
            for kind in record.objects:
                version.arrays(record, kind)
        if version.manifest.shared:
            version.shared[next(iter(version.manifest.shared))]
        assert len(version.tasks) == version.version, (len(version.tasks), version.version)
        seen.append(version.version)
    else:
        try:
            collect_garbage(bank, dry_run=False)
        except BankLockedError:
            refused += 1
        else:
            done += 1
        time.sleep(0.2)
assert seen == sorted(seen)
print(len(seen), len(set(seen)), refused, done)
"""


def test_one_run_survives_a_kill_of_every_kind_of_actor_at_work(
    stream: Place, undisturbed: Outcome
) -> None:
    storage = stream.folder / "actors"
    plan = [
        Kill("shard", 0, working=True),
        Kill("trainer", 0, working=True),
        Kill("registry", 1, working=True),
        Kill("evaluator", 1, working=True),
        Kill("registry", 2, working=True),
    ]
    with killing(plan, storage) as killer:
        outcome = run_here(stream, storage)
    assert {one.kind for one in killer.killed} == set(ACTORS), killer.killed
    assert all(one.doing for one in killer.killed)
    assert outcome == undisturbed


@pytest.fixture
def onlookers(stream: Place) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that load `latest` and collect garbage, again and again."""
    stop = stream.folder / "stop"
    command = [sys.executable, "-c", LOOK]
    arguments = (str(stream.folder / "driver"), str(stop))
    started = [
        subprocess.Popen(
            [*command, what, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for what in ("read", "collect")
    ]
    yield started
    stop.touch()
    for one in started:
        one.kill()


def test_a_killed_driver_loses_nothing_and_readers_see_whole_versions(
    stream: Place, undisturbed: Outcome, onlookers: list[subprocess.Popen[str]]
) -> None:
    storage = stream.folder / "driver"
    command = stream.start(storage)
    try:
        wait_until(lambda: versions(storage) or not command.running, 300, "a first version")
        command.below()
        command.popen.kill()
        command.wait()
        assert 0 < versions(storage) < TASKS
        wait_until(lambda: not command.surviving_actors(), 60, "the end of its actors")
        assert run_here(stream, storage) == undisturbed
    finally:
        command.end()
    (stream.folder / "stop").touch()
    reader, collector = (one.communicate(timeout=60) for one in onlookers)
    assert reader[1] == collector[1] == ""
    loads, different, _, _ = map(int, reader[0].split())
    assert loads > different >= 3
    _, _, refused, collected = map(int, collector[0].split())
    assert refused > 0
    assert collected > 0


def test_the_loss_of_the_node_with_all_actors_costs_time_only(
    stream: Place, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.chaos.nodes import simulated_cluster

    quick = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
    for name, value in {**ENVIRONMENT, **quick}.items():
        monkeypatch.setenv(name, value)
    storage = stream.folder / "node"
    with simulated_cluster(nodes=1) as nodes:
        endured = endure(
            stream,
            storage,
            [Kill("node", 1)],
            f"cluster.address={nodes.address}",
            nodes=nodes,
            rng=random.Random(1),
            seconds=280,
        )
    assert [one.kind for one in endured.killed] == ["node"]
    assert "registry" in endured.killed[0].doing
    assert endured.commands == 1
    assert Outcome.of(endured.finished.summary) == undisturbed
