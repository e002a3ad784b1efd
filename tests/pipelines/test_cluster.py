"""Joining, planning and waiting, all without starting Ray."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.cluster import (
    Bundle,
    ClusterResources,
    ClusterSettings,
    NodeResources,
    plan_actors,
    unplaced,
    wait_for_resources,
)
from pipelines.cluster.joining import (
    RayHandle,
    Way,
    _joining_failure,
    choose_way,
    environment_defaults,
    object_store_bytes,
    runtime_env_for,
)
from pipelines.cluster.reaching import check_reachable
from workers.errors import ClusterError

JOB = {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}


def node(name: str, cpus: float, gpus: float = 0.0, **more: float) -> NodeResources:
    return NodeResources(name, f"host-{name}", cpus, gpus, **more)


def laptop(cpus: float = 2, gpus: float = 0) -> ClusterResources:
    return ClusterResources((node("a", cpus, gpus),), local=True)


def cluster(*nodes: NodeResources) -> ClusterResources:
    return ClusterResources(nodes)


# --- which Ray ---------------------------------------------------------------------------------


def test_without_address_a_local_ray_is_started() -> None:
    assert choose_way(ClusterSettings(), {}) == Way("local", "local")


def test_inside_a_job_its_cluster_is_joined() -> None:
    assert choose_way(ClusterSettings(), JOB) == Way("job", "10.0.0.1:6379")
    assert choose_way(ClusterSettings(address="auto"), JOB) == Way("job", "10.0.0.1:6379")


def test_an_address_in_the_settings_wins_over_the_environment() -> None:
    way = choose_way(ClusterSettings(address="10.0.0.2:6379"), JOB)
    assert way == Way("address", "10.0.0.2:6379")
    assert choose_way(ClusterSettings(address="local"), JOB).how == "local"


def test_auto_never_starts_a_ray_of_its_own() -> None:
    assert choose_way(ClusterSettings(address="auto"), {}) == Way("address", "auto")


def test_a_dashboard_url_in_the_environment_is_refused_in_one_sentence() -> None:
    with pytest.raises(ClusterError, match="luca submit") as caught:
        choose_way(ClusterSettings(), {"RAY_ADDRESS": "http://head:8265"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("ray://head:10001", "luca submit"),
        ("http://head:8265", "dashboard"),
        ("head", "HOST:PORT"),
        ("head:99999", "HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_joined_is_refused_by_the_settings(
    address: str, hint: str
) -> None:
    with pytest.raises(ValidationError, match=hint):
        ClusterSettings(address=address)


@pytest.mark.parametrize("share", [1.5, -0.5])
def test_impossible_gpu_shares_are_refused(share: float) -> None:
    with pytest.raises(ValidationError):
        ClusterSettings(gpus_per_shard=share)


def test_a_local_start_turns_authentication_off_unless_the_user_chose() -> None:
    local = Way("local", "local")
    assert environment_defaults(ClusterSettings(), local, {})["RAY_AUTH_MODE"] == "disabled"
    chosen = environment_defaults(ClusterSettings(), local, {"RAY_AUTH_MODE": "token"})
    assert "RAY_AUTH_MODE" not in chosen
    asked = environment_defaults(
        ClusterSettings(auth="token"), local, {"RAY_AUTH_MODE": "disabled"}
    )
    assert asked["RAY_AUTH_MODE"] == "token"


def test_joining_leaves_authentication_to_the_cluster() -> None:
    assert "RAY_AUTH_MODE" not in environment_defaults(ClusterSettings(), Way("job", "h:1"), {})


def test_usage_reports_are_off_unless_the_user_turned_them_on() -> None:
    way = Way("local", "local")
    assert environment_defaults(ClusterSettings(), way, {})["RAY_USAGE_STATS_ENABLED"] == "0"
    kept = environment_defaults(ClusterSettings(), way, {"RAY_USAGE_STATS_ENABLED": "1"})
    assert "RAY_USAGE_STATS_ENABLED" not in kept


@pytest.mark.parametrize(
    ("free", "expected"),
    [(24 * 10**9, 2 * 10**9), (10**9, 3 * 10**8), (64 * 2**20, 80 * 2**20)],
)
def test_the_object_store_is_bounded_by_shared_memory(free: int, expected: int) -> None:
    assert object_store_bytes(ClusterSettings(), free) == expected


def test_a_checkout_reaches_local_workers_through_the_path() -> None:
    env = runtime_env_for(Way("local", "local"), None, {"PYTHONPATH": "/x"}, Path("/src"))
    assert env["env_vars"]["PYTHONPATH"] == "/src:/x"
    assert "py_modules" not in env


def test_a_checkout_is_shipped_to_a_cluster_joined_by_address() -> None:
    env = runtime_env_for(Way("address", "h:1"), None, {}, Path("/src"))
    assert env["py_modules"] == ["/src/orchestrator", "/src/pipelines", "/src/workers"]


def test_an_installed_program_ships_nothing() -> None:
    env = runtime_env_for(Way("address", "h:1"), None, {}, None)
    assert set(env) == {"env_vars"}
    assert "PYTHONPATH" not in env["env_vars"]


def test_a_jobs_own_runtime_environment_is_not_contradicted() -> None:
    job = {"runtime_env": {"working_dir": "gcs://x.zip", "env_vars": {"OMP_NUM_THREADS": "4"}}}
    env = runtime_env_for(
        Way("job", "h:1"),
        {"env_vars": {"WANDB_MODE": "offline"}, "working_dir": "."},
        {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)},
        Path("/src"),
    )
    assert "working_dir" not in env
    assert "py_modules" not in env
    assert env["env_vars"]["WANDB_MODE"] == "offline"
    assert "OMP_NUM_THREADS" not in env["env_vars"]


def test_a_closed_port_is_one_clear_sentence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ClusterError, match=f"127.0.0.1:{port}"):
        check_reachable(f"127.0.0.1:{port}", seconds=2)


def test_a_version_mismatch_names_both_sides() -> None:
    error = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.55.0\n    Python: 3.12.1\n"
        "This process on 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    sentence = _joining_failure("h:1", error)
    assert (
        "runs Ray 2.55.0 and Python 3.12.1, this machine Ray 2.60.0 and Python 3.11.7" in sentence
    )


def test_importing_the_package_imports_neither_ray_nor_torch() -> None:
    code = "import sys, pipelines.cluster; print({'ray', 'torch', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- how many actors ---------------------------------------------------------------------------


def test_a_two_core_laptop_uses_both_cores_and_reserves_none() -> None:
    plan = plan_actors(ClusterSettings(), laptop(2))
    assert [role.count for role in plan.roles] == [2, 1, 1]
    assert plan.bundles() == ()
    assert not plan.spread


def test_on_a_laptop_any_count_starts() -> None:
    plan = plan_actors(ClusterSettings(shards=5, trainers=4), laptop(1))
    assert (plan.shards.count, plan.trainers.count) == (5, 4)
    assert unplaced(plan.bundles(), laptop(1)) == ()


def test_little_memory_bounds_the_automatic_shards() -> None:
    small = ClusterResources((node("a", 16, memory=4 * 2**30),), local=True)
    assert plan_actors(ClusterSettings(), small).shards.count == 2


def test_a_joined_two_cpu_cluster_runs_one_shard_beside_one_trainer() -> None:
    plan = plan_actors(ClusterSettings(), cluster(node("a", 2)))
    assert [(role.count, role.num_cpus) for role in plan.roles] == [(1, 1), (1, 1), (1, 0)]


def test_a_joined_one_cpu_cluster_shares_its_cpu_and_says_so() -> None:
    plan = plan_actors(ClusterSettings(), cluster(node("a", 1)))
    assert plan.bundles() == ()
    assert "1 CPU" in plan.notes[0]


def test_threads_follow_the_settings_whatever_is_reserved() -> None:
    wish = ClusterSettings(cpus_per_shard=2, cpus_per_trainer=3)
    for resources in (laptop(1), laptop(16), cluster(node("a", 64))):
        plan = plan_actors(wish, resources)
        assert plan.options("shard")["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"
        assert plan.options("trainer")["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "3"


def test_several_nodes_spread_their_actors() -> None:
    plan = plan_actors(ClusterSettings(), cluster(node("a", 4), node("b", 4)))
    assert plan.options("shard")["scheduling_strategy"] == "SPREAD"
    assert plan.shards.count + plan.trainers.count + plan.evaluators.count == 8


def test_an_empty_cluster_that_may_grow_is_asked_for_one_of_each() -> None:
    plan = plan_actors(ClusterSettings(gpus_per_shard=1), cluster(node("head", 0)))
    assert plan.bundles() == (Bundle(1, 1), Bundle(1), Bundle(1))


def test_stated_counts_are_kept_on_a_cluster_that_is_too_small_now() -> None:
    plan = plan_actors(ClusterSettings(shards=8), cluster(node("a", 4)))
    assert plan.shards.count == 8
    assert unplaced(plan.bundles(), cluster(node("a", 4)))


def test_each_gpu_gets_one_shard_by_default() -> None:
    plan = plan_actors(ClusterSettings(), cluster(node("a", 32, 4), node("b", 32, 4)))
    assert (plan.shards.count, plan.shards.num_gpus) == (8, 1.0)
    assert plan_actors(ClusterSettings(), laptop(8, 1)).shards.num_gpus == 1.0


def test_more_shards_than_gpus_share_them() -> None:
    plan = plan_actors(ClusterSettings(shards=4), laptop(8, 1))
    assert plan.shards.num_gpus == 0.25


def test_a_trainers_share_of_a_gpu_is_left_to_it() -> None:
    for resources in (laptop(8, 1), cluster(node("a", 8, 1))):
        plan = plan_actors(ClusterSettings(gpus_per_trainer=0.25), resources)
        assert plan.shards.num_gpus == 0.5
        assert unplaced(plan.bundles(), resources) == ()


def test_ready_features_take_no_gpu() -> None:
    assert plan_actors(ClusterSettings(), laptop(8, 1), backbone=False).shards.num_gpus == 0


def test_a_gpu_that_a_laptop_lacks_is_refused() -> None:
    with pytest.raises(ClusterError, match="ask for 2 GPUs and this machine offers 0"):
        plan_actors(ClusterSettings(gpus_per_shard=1, shards=2), laptop())


nodes = st.lists(
    st.builds(
        node,
        st.uuids().map(str),
        st.integers(0, 16).map(float),
        st.sampled_from([0.0, 1.0, 2.0]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(nodes=nodes, cpus_per_shard=st.integers(1, 4), local=st.booleans())
def test_an_automatic_plan_fits_whenever_one_of_each_fits(
    nodes: list[NodeResources], cpus_per_shard: int, local: bool
) -> None:
    resources = ClusterResources(tuple(nodes[:1] if local else nodes), local=local)
    plan = plan_actors(ClusterSettings(cpus_per_shard=cpus_per_shard), resources)
    assert min(role.count for role in plan.roles) >= 1
    one_each = [Bundle(role.num_cpus, role.num_gpus) for role in plan.roles]
    if not unplaced(sorted(one_each, key=lambda b: (-b.gpus, -b.cpus)), resources):
        assert unplaced(plan.bundles(), resources) == ()


def test_two_half_gpus_on_two_devices_do_not_make_one() -> None:
    two = cluster(node("a", 8, 2))
    assert unplaced([Bundle(1, 0.6)] * 3, two) == (Bundle(1, 0.6),)
    assert unplaced([Bundle(1, 0.5)] * 4, two) == ()


def test_cpus_of_two_nodes_do_not_add_up_for_one_actor() -> None:
    assert unplaced([Bundle(3)], cluster(node("a", 2), node("b", 2))) == (Bundle(3),)


# --- waiting -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Asked:
    """A reservation that is granted when there is room in the state looked at last."""

    def __init__(self, bundles: Sequence[Bundle], now: Callable[[], ClusterResources]) -> None:
        self.bundles, self.released = list(bundles), False
        self._now = now

    def ready(self) -> bool:
        return not unplaced(self.bundles, self._now())

    def release(self) -> None:
        self.released = True


def run_wait(
    states: Iterator[ClusterResources], bundles: list[Bundle], timeout: float
) -> tuple[list[str], list[Asked], ClusterError | None]:
    """What was said, what was asked for, and how it ended."""
    said: list[str] = []
    asked: list[Asked] = []
    clock = Clock()
    seen = [ClusterResources(())]

    def read() -> ClusterResources:
        seen.append(next(states))
        return seen[-1]

    def reserve(wanted: Sequence[Bundle]) -> Asked:
        asked.append(Asked(wanted, lambda: seen[-1]))
        return asked[-1]

    try:
        room = wait_for_resources(
            bundles,
            timeout=timeout,
            notify=said.append,
            read=read,
            reserve=reserve,
            clock=clock,
            sleep=clock.sleep,
        )
    except ClusterError as error:
        return said, asked, error
    finally:
        assert clock.now <= timeout + 1
    assert room is (asked[0] if asked else None)
    return said, asked, None


def test_waiting_is_said_plainly_and_ends_when_a_node_comes() -> None:
    states = iter([cluster(node("a", 2))] * 5 + [cluster(node("a", 2), node("b", 2, 1))] * 2)
    said, (room,), _ = run_wait(states, [Bundle(1, 1)], timeout=60)
    assert said == ["waiting for 1 GPU: the cluster has 0"]
    assert room.bundles == [Bundle(1, 1)]
    assert not room.released, "an autoscaler would take back what came"


def test_nothing_is_said_or_asked_when_there_is_room() -> None:
    assert run_wait(iter([cluster(node("a", 2))] * 2), [Bundle(1)], timeout=0) == ([], [], None)


def test_waiting_in_vain_ends_in_a_clear_error_and_withdraws_the_request() -> None:
    full = itertools.repeat(cluster(node("a", 4, free_cpus=0)))
    _, (room,), error = run_wait(full, [Bundle(1), Bundle(1)], timeout=20)
    assert "waited 20 s for 2 CPUs: the cluster has 4, 0 free" in str(error)
    assert room.released


def test_room_that_is_there_and_not_kept_yet_is_no_shortage() -> None:
    states = iter([cluster(node("a", 0))] * 2 + [cluster(node("a", 1))] * 3)
    granted = iter([False, False, False, True])
    said: list[str] = []

    class Late(Asked):
        def ready(self) -> bool:
            return next(granted)

    clock = Clock()
    wait_for_resources(
        [Bundle(1)],
        timeout=60,
        notify=said.append,
        read=lambda: next(states),
        reserve=lambda wanted: Late(wanted, lambda: next(states)),
        clock=clock,
        sleep=clock.sleep,
    )
    assert said == ["waiting for 1 CPU: the cluster has 0"]


def test_a_long_wait_is_repeated_every_half_minute() -> None:
    states = iter([cluster(node("a", 0))] * 70 + [cluster(node("a", 1))] * 2)
    said, _, _ = run_wait(states, [Bundle(1)], timeout=100)
    assert len(said) == 3


def test_workers_that_learn_together_are_reserved_in_place_of_their_trainer() -> None:
    wish = ClusterSettings(workers_per_task=3, cpus_per_trainer=2)
    plan = plan_actors(wish, cluster(node("a", 16)))
    assert plan.learners is not None
    assert (plan.trainers.count, plan.trainers.num_cpus) == (1, 0)
    assert (plan.learners.count, plan.learners.num_cpus, plan.learners.threads) == (3, 2, 2)
    assert plan.bundles().count(Bundle(2)) == 3
    assert unplaced(plan.bundles(), cluster(node("a", 16))) == ()


def test_workers_that_learn_together_fit_any_laptop() -> None:
    plan = plan_actors(ClusterSettings(workers_per_task=4), laptop(2))
    assert plan.learners is not None
    assert plan.learners.num_cpus == 0.5
    assert unplaced(plan.bundles(), laptop(2)) == ()
    assert plan_actors(ClusterSettings(), laptop(2)).learners is None


@pytest.mark.parametrize(
    "wish",
    [
        ClusterSettings(),
        ClusterSettings(trainers=3, cpus_per_trainer=4),
        ClusterSettings(workers_per_task=4),
    ],
)
@pytest.mark.parametrize("resources", [laptop(2), cluster(node("a", 2)), cluster(node("head", 0))])
def test_where_nothing_is_to_be_learned_no_trainer_is_planned_or_waited_for(
    wish: ClusterSettings, resources: ClusterResources
) -> None:
    plan = plan_actors(wish, resources, learns=False)
    assert (plan.trainers.count, plan.learners) == (0, None)
    scoring = 0 if resources.local else plan.shards.count + plan.evaluators.count
    assert plan.bundles() == (Bundle(1),) * scoring
    assert plan.shards.count >= 1 <= plan.evaluators.count


def test_where_nothing_is_to_be_learned_shards_take_the_trainers_gpu() -> None:
    wish = ClusterSettings(gpus_per_trainer=1)
    for resources in (laptop(8, 1), cluster(node("a", 8, 1))):
        assert plan_actors(wish, resources, learns=False).shards.num_gpus == 1.0


def test_where_nothing_is_to_be_learned_one_cpu_holds_a_shard() -> None:
    plan = plan_actors(ClusterSettings(), cluster(node("a", 1)), learns=False)
    assert [role.num_cpus for role in plan.roles] == [1, 0, 0]
    assert not plan.notes


class Leaving(RayHandle):
    """A Ray that takes its time to stop, or fails to."""

    def close(self, *, keep_logs: bool = False) -> None:
        if self.address == "broken":
            raise OSError("a process would not stop")
        assert working.wait(10)
        left.append(self.address)


working = threading.Event()
left: list[str] = []


def test_ray_is_left_while_the_work_goes_on_and_is_gone_afterwards() -> None:
    with Leaving("local", "here").closing():
        assert left == []
        working.set()
    assert left == ["here"]


def test_what_fails_while_ray_is_left_is_raised_after_the_work() -> None:
    done = False
    with pytest.raises(OSError, match="would not stop"), Leaving("local", "broken").closing():
        done = True
    assert done
