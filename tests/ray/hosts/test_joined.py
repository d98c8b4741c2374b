"""A program joins a cluster over hosts: what crosses them is right, and one that is cut off is told of."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from clusters import environment, start_nodes
from hosts import Hosts
from joined_program import JOINED

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

BEFORE = ("WHERE", "REDUCE", "HANDED", "BROUGHT", "LOADED", "SYNCED", "KILLED")
AFTER = ("CUT", "NEXT", "OVER", "ASKS", "GATE", "READS", "HERE", "OTHER", "END", "TOO_FEW", "AGAIN", "LEFT", "LAST")
"""The reports before a link is cut, and after that."""
PAYLOAD = 30 * 50_000 * 8


@pytest.fixture(scope="module")
def told(hosts_here: None, programs: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program reported, by name."""
    with Hosts() as hosts:
        variables = environment(hosts, secrets.token_hex(32))
        head = start_nodes(hosts, list(hosts.addresses), variables, tmp_path_factory.mktemp("logs"))
        running = programs(JOINED, head, inside=hosts.inside("one"), **variables)
        out = {name: running.report(name, 120) for name in BEFORE}
        running.line("CUT?", 10)
        hosts.cut("three")
        running.say("cut")
        out.update({name: running.report(name, 60) for name in AFTER})
        running.finish(20)
        out["left over"] = running.left_over(10)
    return out


def test_groups_are_placed_over_hosts_and_ranks_follow_their_order(told: dict[str, Any]) -> None:
    wide, near, far = told["WHERE"]["value"]
    assert wide == [[name, f"10.77.0.{i + 1}", str(i), "1"] for i, name in enumerate(("one", "two", "three"))]
    assert near == ["one", "10.77.0.1", "0", "1"]
    assert far == [["three", "10.77.0.3", str(rank), "2"] for rank in range(2)]


def test_a_component_uses_torch_distributed_across_hosts(told: dict[str, Any]) -> None:
    assert told["REDUCE"]["value"] == [6.0] * 3, told["REDUCE"]


def test_a_hand_over_moves_each_byte_once_and_none_through_the_driver(told: dict[str, Any]) -> None:
    found = told["HANDED"]["value"]
    assert found["values"] == list(map(float, range(30)))
    assert found["produced"] >= PAYLOAD and found["fetched"] < 1.3 * PAYLOAD  # rows that two readers need of one piece
    assert found["driver"][:2] == [0, found["driver"][1]] and found["driver"][1] < 10_000 > found["driver"][2]


def test_the_driver_reads_a_large_value_of_another_host(told: dict[str, Any]) -> None:
    assert told["BROUGHT"]["value"] == list(map(float, range(30))), told["BROUGHT"]


def test_a_loader_on_a_group_over_hosts(told: dict[str, Any]) -> None:
    batches = told["LOADED"]["value"]
    assert [[row for _, row in batch] for batch in batches] == [list(range(12)), list(range(12, 24)), [24, 25, 25]]
    assert [len([rank for rank, _ in batch if rank == 0]) for batch in batches] == [6, 6, 2], "one row is a filler"


def test_weights_cross_hosts_that_have_no_default_route(told: dict[str, Any]) -> None:
    assert told["SYNCED"]["value"] == [1, 2, *[[*map(float, range(30)), 0.0]] * 2]


def test_a_worker_that_is_killed_on_another_host(told: dict[str, Any]) -> None:
    killed = told["KILLED"]
    assert killed["kind"] == "WorkerDiedError" and killed["seconds"] < 30
    first = killed["text"].splitlines()[0]
    assert first.startswith("twins[1/2] died during Rank.work on two pid ") and "SIGKILL" in first


def test_a_host_that_is_cut_off_is_an_error_of_all_who_wait_for_it(told: dict[str, Any]) -> None:
    """Ray's own health check finds it; `environment` of clusters.py has shortened its times."""
    cut = told["CUT"]
    assert cut["kind"] == "WorkerDiedError" and cut["seconds"] < 60, cut
    assert re.match(r"far\[[01]/2 dp=[01]\] died during Part.work on three pid \d+: ", cut["text"]), cut
    for name in ("NEXT", "OVER", "ASKS", "GATE", "READS", "HERE"):
        assert told[name]["kind"] == "WorkerDiedError" and told[name]["seconds"] < 60, (name, told[name])
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
    assert told["END"]["kind"] == "" and told["END"]["seconds"] < 60
    assert told["TOO_FEW"]["kind"] == "PlacementError"
    assert told["AGAIN"]["kind"] == ""
    assert [host for host, *_ in told["LEFT"]["value"]] == ["one", "two"]
    assert told["LAST"]["kind"] == "" and told["left over"] == []
