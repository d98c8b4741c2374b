"""Calls by node on a cluster: what is told, and when, where ranks fail, are late or are lost, and where agents are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import os, signal, sys, time
    import ray
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_mesh import DeviceGroup
    from twinkle_ray.by_node import choice
    from twinkle_remote import submit
    from twinkle_remote.protocol.component import component_of
    from twinkle_remote.sessions.current import running

    if sys.argv[1] == "tree":
        vars(choice).update(FAN_OUT=1, RANKS_OF_AGENT=2)  # two agents, one above the other

    @twinkle.remote_class()
    class Ranks:
        def __init__(self):
            self.seen = []

        @twinkle.remote_function(dispatch="all")
        def note(self, value):
            self.seen.append(value)
            return list(self.seen)

        @twinkle.remote_function(dispatch="all")
        def fails(self, who, seconds):
            rank = twinkle.current_worker().rank
            if rank == who:
                raise ValueError(f"rank {rank} fails")
            time.sleep(seconds)
            return rank

        @twinkle.remote_function(dispatch="all", timeout=1.5)
        def late(self, who):
            if twinkle.current_worker().rank == who:
                time.sleep(4)

        @twinkle.remote_function(dispatch="all")
        def large(self):
            return bytes([twinkle.current_worker().rank]) * 200_000

        @twinkle.remote_function(dispatch="slice", collect="flatten")
        def first_bytes(self, rows):
            return [row[0] for row in rows]

        @twinkle.remote_function(dispatch="all")
        def dies(self, who, seconds):
            if twinkle.current_worker().rank == who:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(seconds)

        @twinkle.remote_function(dispatch="all")
        def sleeps(self, seconds):
            time.sleep(seconds)
            self.seen.append("slept")

    groups = [DeviceGroup("ranks", 4, "CPU"), DeviceGroup("readers", 2, "CPU")]
    with twinkle.session("ray", groups=groups, calls="by_node", lazy_collect=False):
        ranks, readers = (twinkle.on(group.name).create(Ranks) for group in groups)
        sent = [submit(ranks.note, value) for value in range(50)]
        report("order", lambda: [one.result() for one in sent][-1])
        report("failure", lambda: ranks.fails(3, 2.0))
        time.sleep(2.5)  # the others are done
        report("late", lambda: ranks.late(2))
        time.sleep(3)
        made = submit(ranks.large)
        made.wait()
        time.sleep(1.0)
        busy = submit(ranks.sleeps, 1.5)
        time.sleep(0.5)
        agents = running().backend._tree.agents
        for agent in agents:
            ray.kill(agent)
        report("agent", busy.result)
        report("results", lambda: readers.first_bytes(made))
        report("after", lambda: ranks.note("after"))
        report("dead", lambda: ranks.dies(1, 0.0))
        report("readers", lambda: readers.note("still there"))
    print("end", flush=True)
"""


@pytest.fixture(scope="module", params=["one agent", "tree"])
def found(joined_programs: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    program = joined_programs(PROGRAM, request.param, OMP_NUM_THREADS="1")
    names = ("order", "failure", "late", "agent", "results", "after", "dead", "readers")
    yield {name: program.report(name, 60) for name in names}
    program.finish(30)


def test_calls_of_one_caller_keep_their_order(found: dict[str, Any]) -> None:
    assert found["order"]["value"] == [list(range(50))] * 4


def test_a_failure_is_told_while_others_are_busy(found: dict[str, Any]) -> None:
    told = found["failure"]
    assert told["kind"] == "ValueError" and "ranks[3/4]" in told["text"] and told["seconds"] < 1.5


def test_a_late_call_names_the_ranks_that_are_done(found: dict[str, Any]) -> None:
    text = found["late"]["text"]
    assert found["late"]["kind"] == "CallTimeoutError" and "ranks [0, 1, 3] are done, ranks [2] are not" in text
    assert ", in late" in text  # its stack


def test_the_loss_of_an_agent_is_told_as_what_it_is(found: dict[str, Any]) -> None:
    told = found["agent"]
    assert told["kind"] == "ReplyLostError" and "the agent of its node" in told["text"], told
    assert "the call may or may not have run" in told["text"] and told["seconds"] < 5


def test_results_outlive_the_agents(found: dict[str, Any]) -> None:
    assert found["results"]["value"] == [0, 1, 2, 3], found["results"]


def test_the_ranks_of_a_lost_agent_go_on(found: dict[str, Any]) -> None:
    assert found["after"]["value"] == [[*range(50), "slept", "after"]] * 4, found["after"]


def test_a_lost_rank_is_told(found: dict[str, Any]) -> None:
    assert found["dead"]["kind"] == "WorkerDiedError" and "ranks[1/4]" in found["dead"]["text"]
    assert found["readers"]["value"] == [["still there"]] * 2
