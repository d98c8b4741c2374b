"""Programs over hosts: one joins a cluster, another one's own cluster is joined; what crosses hosts is right, and hosts
that are cut off are told of. Both run at once, for most of the time they wait.
"""

from __future__ import annotations

import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from clusters import environment, start_nodes
from hosts import Hosts
from joined_program import JOINED
from own_program import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.long]

BEFORE = ("WHERE", "REDUCE", "HANDED", "BROUGHT", "EXPLAINED", "LOADED", "SYNCED")
OUT = ("OUT_HANDED", "OUT_SYNCED", "OUT_COUNTED")
AFTER = ("CUT", "NEXT", "OVER", "ASKS", "GATE", "READS", "HERE", "OTHER", "END", "TOO_FEW", "AGAIN", "LEFT", "LAST")
"""The reports on quiet links, while a link is down for some seconds, and after it is cut."""
OUTAGE = 3.0
BEGUN = 0.5  # seconds until then, of a hand-over or sync that takes longer
PAYLOAD = 30 * 50_000 * 8


def joined(programs: Callable[..., Any], logs: Path) -> dict[str, Any]:
    """What the program that joins a cluster reported, by name."""
    with Hosts() as hosts:
        variables = environment(hosts, secrets.token_hex(32))
        head = start_nodes(hosts, list(hosts.addresses), variables, logs)
        running = programs(JOINED, head, inside=hosts.inside("one"), **variables)
        out = {name: running.report(name, 120) for name in BEFORE}
        running.line("SLOW?", 10)
        hosts.set_rate("two", "40mbit")
        running.say("slow")
        out["SLOW"] = running.report("SLOW", 60)
        running.line("LOSSY?", 10)
        hosts.set_rate("two", "500mbit")
        hosts.set_loss("three", sent=0.05, received=0.05)
        running.say("lossy")
        out["LOSSY"] = running.report("LOSSY", 120)
        hosts.set_rate("three", "40mbit")
        for name in OUT:
            running.line("OUT?", 10)
            running.say("out")
            time.sleep(BEGUN)
            hosts.cut("three")
            time.sleep(OUTAGE)
            hosts.mend("three")
            out[name] = running.report(name, 60)
        hosts.set_rate("three", "500mbit")
        running.line("QUICK?", 10)
        running.say("quick")
        out["KILLED"] = running.report("KILLED", 30)
        running.line("CUT?", 10)
        hosts.cut("three")
        running.say("cut")
        out.update({name: running.report(name, 60) for name in AFTER})
        running.finish(20)
        out["left over"] = running.left_over(10)
    return out


def own(programs: Callable[..., Any], logs: Path) -> dict[str, Any]:
    """What the program with a cluster of its own reported, by name."""
    with Hosts(("one", "two", "three", "four")) as hosts:
        variables = environment(hosts, secrets.token_hex(32))
        running = programs(OWN, hosts.addresses["one"], inside=hosts.inside("one"), **variables)
        head = running.line("HEAD ", 120)
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
        running.line("KILL?", 10)
        hosts.kill("four")
        running.say("kill")
        out.update({name: running.report(name, 60) for name in ("KILLED", "AFTER_KILL", "OTHER", "LAST")})
        running.finish(60)
        out["left over"] = running.left_over(10)
    return out


@pytest.fixture(scope="module")
def both(
    hosts_here: None, programs: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    with ThreadPoolExecutor(2) as pool:
        yield {one.__name__: pool.submit(one, programs, tmp_path_factory.mktemp("logs")) for one in (joined, own)}


@pytest.fixture
def told(both: dict[str, Future[dict[str, Any]]]) -> dict[str, Any]:
    return both["joined"].result()


@pytest.fixture
def own_told(both: dict[str, Future[dict[str, Any]]]) -> dict[str, Any]:
    return both["own"].result()


def test_groups_are_placed_over_hosts_and_ranks_follow_their_order(told: dict[str, Any]) -> None:
    wide, near, far = told["WHERE"]["value"]
    assert wide == [[name, f"10.77.0.{i + 1}", str(i), "1"] for i, name in enumerate(("one", "two", "three"))]
    assert near == ["one", "10.77.0.1", "0", "1"]
    assert far == [["three", "10.77.0.3", str(rank), "2"] for rank in range(2)]


def test_a_component_uses_torch_distributed_across_hosts(told: dict[str, Any]) -> None:
    assert told["REDUCE"]["value"] == [6.0] * 3, told["REDUCE"]


def check_handed(found: dict[str, Any]) -> None:
    assert found["values"] == list(map(float, range(30)))
    assert found["produced"] >= PAYLOAD and found["fetched"] < 1.05 * PAYLOAD
    assert found["driver"][:2] == [0, found["driver"][1]] and found["driver"][1] < 10_000 > found["driver"][2]


@pytest.mark.parametrize("name", ["HANDED", "SLOW"])
def test_a_hand_over_moves_each_byte_once_and_none_through_the_driver(told: dict[str, Any], name: str) -> None:
    check_handed(told[name]["value"])


def test_the_driver_reads_a_large_value_of_another_host(told: dict[str, Any]) -> None:
    assert told["BROUGHT"]["value"] == list(map(float, range(30))), told["BROUGHT"]


def test_explain_says_what_crosses_hosts(told: dict[str, Any]) -> None:
    moves = told["EXPLAINED"]["value"]["moves"]
    assert [move[:3] for move in moves] == [["wide", name, "three"] for name in ("one", "two", "three")]
    assert all(PAYLOAD / 3 <= nbytes < 1.05 * PAYLOAD / 3 for *_, nbytes in moves)
    *_, head, first, second = told["EXPLAINED"]["value"]["text"].splitlines()
    across = sum(nbytes for *_, nbytes in moves[:2])
    assert head.startswith(f"hand-over: {across:,} of ") and head.endswith(" bytes cross hosts")
    assert first.startswith("  wide: one -> three ") and second.startswith("  wide: two -> three ")


def test_a_slow_host_is_slow_and_not_lost(told: dict[str, Any]) -> None:
    assert told["SLOW"]["seconds"] > PAYLOAD / 3 / 5e6 * 0.9  # a third of the payload at 40 Mbit/s


def check_loaded(batches: list[list[list[int]]]) -> None:
    assert [[row for _, row in batch] for batch in batches] == [list(range(12)), list(range(12, 24)), [24, 25, 25]]
    assert [len([rank for rank, _ in batch if rank == 0]) for batch in batches] == [6, 6, 2], "one row is a filler"


def check_synced(found: list[Any]) -> None:
    assert found == [1, 2, *[[*map(float, range(30)), 0.0]] * 2]


def test_a_loader_on_a_group_over_hosts(told: dict[str, Any]) -> None:
    check_loaded(told["LOADED"]["value"])


def test_weights_cross_hosts_that_have_no_default_route(told: dict[str, Any]) -> None:
    check_synced(told["SYNCED"]["value"])


def test_on_a_link_that_loses_packets_all_is_right_and_each_call_has_run_once(told: dict[str, Any]) -> None:
    assert told["LOSSY"]["kind"] == "", told["LOSSY"]
    handed, loaded, synced, counted = told["LOSSY"]["value"]
    check_handed(handed)
    check_loaded(loaded)
    check_synced(synced)
    assert counted == [50, 50]


def test_a_link_that_is_down_for_3_seconds_ends_nothing(told: dict[str, Any]) -> None:
    for name in OUT:
        assert told[name]["kind"] == "" and told[name]["seconds"] > OUTAGE / 2, told[name]
    check_handed(told["OUT_HANDED"]["value"])
    check_synced(told["OUT_SYNCED"]["value"])
    assert told["OUT_COUNTED"]["value"] == [100, 100]


def test_a_worker_that_is_killed_on_another_host(told: dict[str, Any]) -> None:
    killed = told["KILLED"]
    assert killed["kind"] == "WorkerDiedError" and killed["seconds"] < 15
    first = killed["text"].splitlines()[0]
    assert first.startswith("twins[1/2] died during Rank.work on two pid ") and "SIGKILL" in first


def test_a_host_that_is_cut_off_is_an_error_of_all_who_wait_for_it(told: dict[str, Any]) -> None:
    """Ray's own health check finds it; `environment` of clusters.py has shortened its times."""
    cut = told["CUT"]
    assert cut["kind"] == "WorkerDiedError" and cut["seconds"] < 30, cut
    assert re.match(r"far\[[01]/2 dp=[01]\] died during Part.work on three pid \d+: ", cut["text"]), cut
    for name in ("NEXT", "OVER", "ASKS", "GATE", "READS", "HERE"):
        assert told[name]["kind"] == "WorkerDiedError" and told[name]["seconds"] < 30, (name, told[name])
    assert "wide[2/3" in told["OVER"]["text"]
    died = r"far\[[01]/2( dp=[01])?\] died during Part.work on three pid \d+: "
    assert re.search(died, told["ASKS"]["text"]), told["ASKS"]
    assert told["GATE"]["text"].startswith(
        "Rank.take did not run, because the call that makes its argument failed: "
    ), told["GATE"]
    assert re.search(r"\d+ bytes of far\[[01]/2\] are gone", told["READS"]["text"]), told["READS"]
    assert re.search(r"\d+ bytes of far\[[01]/2\] are gone", told["HERE"]["text"]), told["HERE"]


def test_the_other_hosts_go_on(told: dict[str, Any]) -> None:
    assert told["OTHER"]["value"] == 0, told["OTHER"]


def test_the_session_ends_and_another_one_runs_on_the_other_hosts(told: dict[str, Any]) -> None:
    assert told["END"]["kind"] == "" and told["END"]["seconds"] < 20
    assert told["TOO_FEW"]["kind"] == "PlacementError"
    assert told["AGAIN"]["kind"] == ""
    assert [host for host, *_ in told["LEFT"]["value"]] == ["one", "two"]
    assert told["LAST"]["kind"] == "" and told["left over"] == []


def test_calls_come_in_order_on_all_hosts(own_told: dict[str, Any]) -> None:
    assert own_told["WHERE"]["value"] == [["one", "two"], 2]
    assert own_told["ORDER"]["value"] == [list(range(40))] * 2


def test_the_deadline_tells_where_late_ranks_of_both_hosts_are(own_told: dict[str, Any]) -> None:
    late = own_told["LATE"]
    assert late["kind"] == "CallTimeoutError" and late["seconds"] < 10, late
    assert all(f"all[{rank}/2]" in late["text"] for rank in (0, 1)), late["text"]
    assert "ranks 0, 1:\n" in late["text"] and "in late\n" in late["text"], late["text"]


def test_the_first_failure_is_raised_before_the_other_host_answers(own_told: dict[str, Any]) -> None:
    fails = own_told["FAILS"]
    assert fails["kind"] == "ValueError" and fails["seconds"] < 4 and "rank 1 fails" in fails["text"], fails
    assert "rank 0 fails" not in fails["text"]


def test_a_killed_worker_of_the_other_host_is_named(own_told: dict[str, Any]) -> None:
    dies = own_told["DIES"]
    assert dies["kind"] == "WorkerDiedError" and dies["seconds"] < 15, dies
    first = dies["text"].splitlines()[0]
    assert first.startswith("all[1/2] died during Part.dies on two pid "), first


def test_a_restart_goes_on_without_a_host_that_has_just_become_silent(own_told: dict[str, Any]) -> None:
    restart = own_told["RESTART"]
    assert restart["kind"] == "" and restart["seconds"] < 30 + 15, restart  # the loss is seen, then a worker starts
    assert own_told["JOINED"]["value"] == [["one", "three"], 3], own_told["JOINED"]
    assert own_told["END"]["kind"] == "" and own_told["END"]["seconds"] < 20


def test_the_call_after_a_host_has_ended_answers_within_5_seconds(own_told: dict[str, Any]) -> None:
    assert own_told["AGAIN"]["value"] == ["one", "four"]
    killed = own_told["KILLED"]
    assert killed["kind"] == "WorkerDiedError" and killed["seconds"] < 30, killed
    first = killed["text"].splitlines()[0]
    assert first.startswith("four[0/1] died during Part.work on four pid "), first
    assert own_told["AFTER_KILL"]["kind"] == "WorkerDiedError" and own_told["AFTER_KILL"]["seconds"] < 5, own_told[
        "AFTER_KILL"
    ]


def test_the_session_ends_and_its_cluster_with_the_program(own_told: dict[str, Any]) -> None:
    assert own_told["OTHER"]["value"] == "one"
    assert own_told["LAST"]["kind"] == "" and own_told["LAST"]["seconds"] < 20
    assert own_told["left over"] == []
