"""Calls by node over hosts: order, deadline, first failure, a lost worker, a joined node, a cut link."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
from clusters import environment, start_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosts import Hosts

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

    vars(choice).update(FAN_OUT=1)  # the second host gets its messages from the first one's agent

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

    def wait_for(what):
        print(what, flush=True)
        sys.stdin.readline()

    def agents():
        backend = running().backend
        return [len(backend._agents), len(backend._tree.agents), backend.group("all").by_node.reaches_all]

    if __name__ == "__main__":
        ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address=sys.argv[1])
        wait_for(f"HEAD {ray.get_runtime_context().gcs_address}")
        twinkle.initialize("ray", groups=[DeviceGroup("all", 2, "CPU")], calls="by_node", restart="group")
        part = Part(remote_group="all")
        report("WHERE", lambda: [part.where().result(), *agents()])
        report("ORDER", lambda: [note.result() for note in [part.note(number) for number in range(40)]][-1])
        report("LATE", lambda: part.late().result())
        report("FAILS", lambda: part.fails().result())
        report("DIES", lambda: part.dies().result())
        report("RESTART", lambda: restart("all"))
        busy = part.work(600.0)
        wait_for("CUT?")
        report("CUT", lambda: busy.result())
        wait_for("JOIN?")
        report("RESTART", lambda: restart("all"))
        report("JOINED", lambda: [part.where().result(), *agents()])
        report("END", twinkle.shutdown)
        ray.shutdown()
"""


@pytest.fixture(scope="module")
def told(
    make_hosts: Callable[[], Hosts], programs: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the program reported, by name."""
    hosts = make_hosts()
    variables = environment(hosts, secrets.token_hex(32))
    running = programs(PROGRAM, hosts.addresses["one"], inside=hosts.inside("one"), **variables)
    head = running.line("HEAD ", 120)
    logs = tmp_path_factory.mktemp("logs")
    start_nodes(hosts, ["two"], variables, logs, head=head)
    running.say("nodes")
    out = {name: running.report(name, 120) for name in ("WHERE", "ORDER", "LATE", "FAILS", "DIES", "RESTART")}
    running.line("CUT?", 10)
    hosts.cut("two")
    running.say("cut")
    out["CUT"] = running.report("CUT", 60)
    running.line("JOIN?", 10)
    start_nodes(hosts, ["three"], variables, logs, head=head)
    running.say("joined")
    out["RESTARTED"] = running.report("RESTART", 120)
    out.update({name: running.report(name, 60) for name in ("JOINED", "END")})
    running.finish(60)
    out["left over"] = running.left_over(10)
    return out


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


def test_a_link_that_is_cut_in_a_call_by_node_is_told_within_15_seconds(told: dict[str, Any]) -> None:
    cut = told["CUT"]
    assert cut["kind"] == "WorkerDiedError" and cut["seconds"] < 15, cut
    first = cut["text"].splitlines()[0]
    assert first.startswith("all[1/2] died during Part.work on two pid ") and "10.77.0.2:" in first, first


def test_a_node_that_a_restart_adds_has_agents(told: dict[str, Any]) -> None:
    assert told["RESTARTED"]["kind"] == "", told["RESTARTED"]
    assert told["JOINED"]["value"] == [["one", "three"], 3, 3, False], told["JOINED"]
    assert told["END"]["kind"] == "" and told["END"]["seconds"] < 20
    assert told["left over"] == []
