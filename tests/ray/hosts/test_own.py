"""A program whose own cluster two other hosts have joined: one is cut off, the other one ends with all it runs."""

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
    import socket, sys, time
    import ray
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Part:
        @twinkle.remote_function(dispatch="all")
        def work(self, seconds):
            time.sleep(seconds)
            return socket.gethostname()

        @twinkle.remote_function(dispatch="all", collect="none")
        def take(self, value):
            return value

    def wait_for(what):
        print(what, flush=True)
        sys.stdin.readline()

    if __name__ == "__main__":
        ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address=sys.argv[1])
        wait_for(f"HEAD {ray.get_runtime_context().gcs_address}")
        groups = [DeviceGroup("own", 1, "CPU"), DeviceGroup("two", 2, "two"), DeviceGroup("three", 2, "three")]
        twinkle.initialize("ray", groups=groups)
        own, two, three = (Part(remote_group=group.name) for group in groups)
        report("WHERE", lambda: [own.work(0.0).result(), two.work(0.0).result(), three.work(0.0).result()])
        busy, other = three.work(600.0), two.work(600.0)
        wait_for("CUT?")
        report("CUT", lambda: busy.result())
        report("AFTER_CUT", lambda: three.work(0.0).result())
        report("HANDED", lambda: own.take(own.work(0.0)).result())
        wait_for("KILL?")
        report("KILLED", lambda: other.result())
        report("AFTER_KILL", lambda: two.work(0.0).result())
        report("OTHER", lambda: own.work(0.0).result())
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
    start_nodes(hosts, ["two", "three"], variables, tmp_path_factory.mktemp("logs"), head=head)
    running.say("nodes")
    out = {"WHERE": running.report("WHERE", 120)}
    running.line("CUT?", 10)
    hosts.cut("three")
    running.say("cut")
    out.update({name: running.report(name, 60) for name in ("CUT", "AFTER_CUT", "HANDED")})
    running.line("KILL?", 10)
    hosts.kill("two")
    running.say("kill")
    out.update({name: running.report(name, 60) for name in ("KILLED", "AFTER_KILL", "OTHER", "END")})
    running.finish(60)
    out["left over"] = running.left_over(10)
    return out


def test_a_host_that_is_cut_off_is_named_within_15_seconds(told: dict[str, Any]) -> None:
    assert told["WHERE"]["value"] == ["one", ["two"] * 2, ["three"] * 2]
    cut = told["CUT"]
    assert cut["kind"] == "WorkerDiedError" and cut["seconds"] < 15, cut
    first = cut["text"].splitlines()[0]
    assert first.startswith("three[") and "died during Part.work on three pid" in first and "10.77.0.3:" in first
    assert told["AFTER_CUT"]["kind"] == "WorkerDiedError" and told["AFTER_CUT"]["seconds"] < 5


def test_the_first_hand_over_does_not_wait_for_a_lost_host(told: dict[str, Any]) -> None:
    assert told["HANDED"]["value"] == "one" and told["HANDED"]["seconds"] < 15, told["HANDED"]


def test_the_call_after_a_host_has_ended_answers_within_5_seconds(told: dict[str, Any]) -> None:
    killed = told["KILLED"]
    assert killed["kind"] == "WorkerDiedError" and killed["seconds"] < 15, killed
    first = killed["text"].splitlines()[0]
    assert first.startswith("two[") and "died during Part.work on two pid" in first
    assert told["AFTER_KILL"]["kind"] == "WorkerDiedError" and told["AFTER_KILL"]["seconds"] < 5, told["AFTER_KILL"]


def test_the_session_ends_and_its_cluster_with_the_program(told: dict[str, Any]) -> None:
    assert told["OTHER"]["value"] == "one"
    assert told["END"]["kind"] == "" and told["END"]["seconds"] < 20
    assert told["left over"] == []
