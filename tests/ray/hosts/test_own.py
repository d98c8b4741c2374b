"""A program whose own cluster other hosts join: calls by node, a restart beside a silent host, hosts that are lost."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from clusters import environment, start_nodes
from hosts import Hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import os, signal, socket, sys, time
    import ray
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_mesh import DeviceGroup
    from twinkle_ray import restart
    from twinkle_ray.by_node import choice
    from twinkle_remote.sessions.current import running

    vars(choice).update(FAN_OUT=1)  # each host gets its messages from the agent of the one before

    @twinkle.remote_class()
    class Part:
        def __init__(self):
            self.seen = []

        @twinkle.remote_function(dispatch="all")
        def where(self):
            return socket.gethostname()

        @twinkle.remote_function(dispatch="all")
        def note(self, value):
            self.seen.append(value)
            return list(self.seen)

        @twinkle.remote_function(dispatch="all", timeout=3)
        def late(self):
            time.sleep(6)

        @twinkle.remote_function(dispatch="all")
        def fails(self):
            rank = twinkle.current_worker().rank
            time.sleep(0 if rank else 4)
            raise ValueError(f"rank {rank} fails")

        @twinkle.remote_function(dispatch="all")
        def dies(self):
            if twinkle.current_worker().rank:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(4)

        @twinkle.remote_function(dispatch="all")
        def work(self, seconds):
            time.sleep(seconds)

        @twinkle.remote_function(dispatch="all", collect="none")
        def take(self, value):
            return value

    def wait_for(what):
        print(what, flush=True)
        sys.stdin.readline()

    def agents():
        backend = running().backend
        return [len(backend._agents), len(backend._tree.agents), backend.group("all").by_node.reaches_all]

    def answer_of(part):
        until = time.monotonic() + 60
        while True:
            try:
                return part.where().result()
            except twinkle.WorkerDiedError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)

    def start(*groups, **more):
        twinkle.initialize("ray", groups=groups, calls="by_node", **more)
        return [Part(remote_group=group.name) for group in groups]

    if __name__ == "__main__":
        ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address=sys.argv[1])
        wait_for(f"HEAD {ray.get_runtime_context().gcs_address}")
        (part,) = start(DeviceGroup("all", 2, "CPU"), restart="group")
        report("WHERE", lambda: [part.where().result(), *agents()])
        report("ORDER", lambda: [note.result() for note in [part.note(number) for number in range(40)]][-1])
        report("LATE", lambda: part.late().result())
        report("FAILS", lambda: part.fails().result())
        report("DIES", lambda: part.dies().result())
        wait_for("SILENT?")
        report("RESTART", lambda: restart("all"))
        report("JOINED", lambda: [part.where().result(), *agents()])
        report("END", twinkle.shutdown)
        wait_for("AGAIN?")
        kinds = {"own": "CPU", "four": "four", "three": "three"}
        own, four, three = start(*(DeviceGroup(name, 1, kind) for name, kind in kinds.items()))
        report("AGAIN", lambda: [own.where().result(), four.where().result(), three.where().result()])
        busy, other = three.work(12.0), four.work(600.0)
        wait_for("MUTE?")
        report("MUTE", lambda: busy.result())
        report("AFTER_MUTE", lambda: three.where().result())
        report("HANDED", lambda: own.take(own.where()).result())
        wait_for("HEARD?")
        report("HEARD", lambda: answer_of(three))
        busy = three.work(600.0)
        wait_for("DEAF?")
        report("DEAF", lambda: busy.result())
        wait_for("KILL?")
        report("KILLED", lambda: other.result())
        report("AFTER_KILL", lambda: four.where().result())
        report("OTHER", lambda: own.where().result())
        report("LAST", twinkle.shutdown)
        ray.shutdown()
"""


@pytest.fixture(scope="module")
def told(
    hosts_here: None, programs: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What the program reported, by name."""
    with Hosts(("one", "two", "three", "four")) as hosts:
        variables = environment(hosts, secrets.token_hex(32))
        running = programs(PROGRAM, hosts.addresses["one"], inside=hosts.inside("one"), **variables)
        head = running.line("HEAD ", 120)
        logs = tmp_path_factory.mktemp("logs")
        start_nodes(hosts, ["two"], variables, logs, head=head)
        running.say("nodes")
        out = {name: running.report(name, 120) for name in ("WHERE", "ORDER", "LATE", "FAILS", "DIES")}
        running.line("SILENT?", 10)
        start_nodes(hosts, ["three"], variables, logs, head=head)
        hosts.cut("two")
        running.say("silent")
        out.update({name: running.report(name, 120) for name in ("RESTART", "JOINED", "END")})
        running.line("AGAIN?", 10)
        start_nodes(hosts, ["four"], variables, logs, head=head)
        running.say("again")
        out["AGAIN"] = running.report("AGAIN", 120)
        running.line("MUTE?", 10)
        hosts.set_loss("three", sent=1.0)
        running.say("mute")
        out.update({name: running.report(name, 60) for name in ("MUTE", "AFTER_MUTE", "HANDED")})
        running.line("HEARD?", 10)
        hosts.set_loss("three")
        running.say("heard")
        out["HEARD"] = running.report("HEARD", 60)
        running.line("DEAF?", 10)
        hosts.set_loss("three", received=1.0)
        running.say("deaf")
        out["DEAF"] = running.report("DEAF", 60)
        running.line("KILL?", 10)
        hosts.kill("four")
        running.say("kill")
        out.update({name: running.report(name, 60) for name in ("KILLED", "AFTER_KILL", "OTHER", "LAST")})
        running.finish(60)
        out["left over"] = running.left_over(10)
        yield out


def test_calls_come_in_order_on_all_hosts(told: dict[str, Any]) -> None:
    assert told["WHERE"]["value"] == [["one", "two"], 2, 2, True]
    assert told["ORDER"]["value"] == [list(range(40))] * 2


def test_the_deadline_tells_where_late_ranks_of_both_hosts_are(told: dict[str, Any]) -> None:
    late = told["LATE"]
    assert late["kind"] == "CallTimeoutError" and late["seconds"] < 10, late
    assert all(f"all[{rank}/2]" in late["text"] for rank in (0, 1)), late["text"]
    assert "ranks 0, 1:\n" in late["text"] and late["text"].endswith("in late"), late["text"]


def test_the_first_failure_is_raised_before_the_other_host_answers(told: dict[str, Any]) -> None:
    fails = told["FAILS"]
    assert fails["kind"] == "ValueError" and fails["seconds"] < 4 and "rank 1 fails" in fails["text"], fails
    assert "rank 0 fails" not in fails["text"]


def test_a_killed_worker_of_the_other_host_is_named(told: dict[str, Any]) -> None:
    dies = told["DIES"]
    assert dies["kind"] == "WorkerDiedError" and dies["seconds"] < 15, dies
    first = dies["text"].splitlines()[0]
    assert first.startswith("all[1/2] died during Part.dies on two pid "), first


def test_a_restart_goes_on_without_a_host_that_has_just_become_silent(told: dict[str, Any]) -> None:
    restart = told["RESTART"]
    assert restart["kind"] == "" and restart["seconds"] < 15 + 15, restart  # the loss is seen, then a worker starts
    assert told["JOINED"]["value"] == [["one", "three"], 3, 3, False], told["JOINED"]
    assert told["END"]["kind"] == "" and told["END"]["seconds"] < 20


@pytest.mark.parametrize("name", ["MUTE", "DEAF"])
def test_a_host_that_one_direction_does_not_reach_is_named_within_15_seconds(told: dict[str, Any], name: str) -> None:
    lost = told[name]
    assert lost["kind"] == "WorkerDiedError" and lost["seconds"] < 15, lost
    first = lost["text"].splitlines()[0]
    started = r"three\[0/1\] died during Part.work on three pid \d+: its node at 10.77.0.3:\d+ does not answer"
    assert re.match(started, first), first  # and not: it was lost before this call


def test_a_host_that_is_heard_again_is_called_again(told: dict[str, Any]) -> None:
    assert told["AGAIN"]["value"] == ["one", "four", "three"]
    assert told["AFTER_MUTE"]["kind"] == "WorkerDiedError" and told["AFTER_MUTE"]["seconds"] < 5
    assert told["HEARD"]["value"] == "three", told["HEARD"]


def test_the_first_hand_over_does_not_wait_for_a_lost_host(told: dict[str, Any]) -> None:
    assert told["HANDED"]["value"] == "one" and told["HANDED"]["seconds"] < 15, told["HANDED"]


def test_the_call_after_a_host_has_ended_answers_within_5_seconds(told: dict[str, Any]) -> None:
    killed = told["KILLED"]
    assert killed["kind"] == "WorkerDiedError" and killed["seconds"] < 15, killed
    first = killed["text"].splitlines()[0]
    assert first.startswith("four[0/1] died during Part.work on four pid "), first
    assert told["AFTER_KILL"]["kind"] == "WorkerDiedError" and told["AFTER_KILL"]["seconds"] < 5, told["AFTER_KILL"]


def test_the_session_ends_and_its_cluster_with_the_program(told: dict[str, Any]) -> None:
    assert told["OTHER"]["value"] == "one"
    assert told["LAST"]["kind"] == "" and told["LAST"]["seconds"] < 20
    assert told["left over"] == []
