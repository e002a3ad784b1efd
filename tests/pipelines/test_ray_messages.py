"""Ray's paragraphs about lost processes become sentences, and never reach standard output."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from pipelines.cluster.messages import RayMessages, sentence

YELLOW, RESET = "\x1b[33m", "\x1b[0m"
TASK = (
    f"{YELLOW}(raylet){RESET} Task DataShardImpl.extract failed. There are infinite retries remaining, so the task "
    "will be retried. Error: The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14"
)
WORKER = (
    f"{YELLOW}(raylet){RESET} A worker died or was killed while executing a task by an unexpected system error. "
    "To troubleshoot the problem, check the logs for the dead worker. Lease ID: 0000"
)
RAYLET = f"{YELLOW}(raylet){RESET} Raylet is terminated. Termination is unexpected. Possible reasons include: (1)"
NODE = (
    f"{YELLOW}(raylet, ip=10.0.0.7){RESET} The node with node id: 0123456789abcdef and address: 10.0.0.7 and node "
    "name: 10.0.0.7 has been marked dead because the detector has missed too many heartbeats from it. This can "
    "happen when a \t(1) raylet crashes unexpectedly (OOM, etc.) \n\t(2) raylet has lagging heartbeats."
)


def in_thread(name: str, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def messages(said: list[str], capsys: pytest.CaptureFixture[str]) -> RayMessages:
    return RayMessages(said.append)


def test_a_lost_call_names_the_actor_and_its_work() -> None:
    assert sentence(TASK) == (
        "a process (DataShard, in 'extract') was lost; Ray starts it again and repeats the work"
    )


def test_a_lost_node_is_named_and_the_wait_explained() -> None:
    assert sentence(NODE) == (
        "node 01234567 was lost; what ran there starts again elsewhere, as soon as there is room"
    )


def test_what_another_message_says_as_well_is_left_out() -> None:
    assert sentence(WORKER) is None
    assert sentence(RAYLET) is None


def test_anything_else_is_one_line_of_bounded_length() -> None:
    found = sentence(
        f"{YELLOW}(raylet){RESET} 1 worker(s) were killed\ndue to low memory. " + 99 * "more "
    )
    assert found is not None
    assert found.startswith("Ray: 1 worker(s) were killed due to low memory.")
    assert len(found) < 320


def test_only_threads_of_ray_are_taken_off_standard_output(
    messages: RayMessages, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    messages.start()
    try:
        in_thread("ray_listen_error_messages", lambda: print(TASK))
        in_thread("my own thread", lambda: print("from a thread"))
        print("from the main thread", end="!\n")
    finally:
        messages.stop()
    assert capsys.readouterr().out == "from a thread\nfrom the main thread!\n"
    assert said == [sentence(TASK)]


def test_what_ray_prints_while_it_is_shut_down_is_taken_as_well(
    messages: RayMessages, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    repeated = f"{TASK}{YELLOW} [repeated 2x across cluster]{RESET}"
    messages.start()
    try:
        messages.during(lambda: print(repeated))
        print("the result")
    finally:
        messages.stop()
    assert capsys.readouterr().out == "the result\n"
    assert said == [sentence(TASK)]


def test_nothing_is_said_of_processes_that_are_stopped_on_purpose(
    messages: RayMessages, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    messages.start()
    try:
        messages.mute()
        in_thread("ray_listen_error_messages", lambda: print(TASK))
    finally:
        messages.stop()
    assert said == []
    assert capsys.readouterr().out == ""


def test_the_same_sentence_is_said_once_in_a_while(messages: RayMessages, said: list[str]) -> None:
    messages.start()
    try:
        for message in (TASK, WORKER, TASK, NODE, TASK):
            in_thread("ray_listen_error_messages", lambda message=message: print(message))  # type: ignore[misc]
    finally:
        messages.stop()
    assert said == [sentence(TASK), sentence(NODE)]


def test_standard_output_is_given_back_unless_it_was_replaced(
    messages: RayMessages, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout
    messages.start()
    assert sys.stdout is not before
    messages.stop()
    assert sys.stdout is before
    messages.start()
    sys.stdout = other = sys.stderr
    messages.stop()
    assert sys.stdout is other
    sys.stdout = before
