"""A program on one of three hosts joins a cluster: what crosses hosts is right, and one that is cut off is told of."""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest
from clusters import environment, start_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosts import Hosts

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import os, signal, socket, sys, time
    import numpy as np, torch
    import torch.distributed as dist
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_data import DataLoader
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_ray.weights import Shard, WeightSync

    ROWS, COLUMNS = 30, 50_000
    wide_mesh, far_mesh = DeviceMesh.from_sizes(dp_size=3), DeviceMesh.from_sizes(dp_size=2)

    @twinkle.remote_class()
    class Rank:  # its workers do not import torch
        def __init__(self, device_mesh=None):
            worker = twinkle.current_worker()
            self.rank, self.size, self.count = worker.rank, worker.world_size, 0

        @twinkle.remote_function(dispatch="all")
        def where(self):
            address = socket.gethostbyname(socket.gethostname())
            return socket.gethostname(), address, os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"]

        @twinkle.remote_function(dispatch="all")
        def work(self, seconds, killed=-1):
            if killed == self.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(seconds)
            return self.rank

        @twinkle.remote_function(dispatch="all")
        def ask(self, other):
            return other.work(600.0).result()

        @twinkle.remote_function(dispatch="all")
        def take(self, value):
            return len(value)

        @twinkle.remote_function(dispatch="all")
        def add(self):
            self.count += 1
            return self.count

    @twinkle.remote_class()
    class Part(Rank):
        def weights(self):
            if self.size == 2:
                self.whole = torch.zeros(ROWS, COLUMNS)
                return {"w": self.whole}
            rows = ROWS // self.size
            first = self.rank * rows
            part = torch.arange(first, first + rows, dtype=torch.float32)[:, None].expand(rows, COLUMNS).contiguous()
            return {"w": Shard(part, (ROWS, COLUMNS), (first, 0))}

        @twinkle.remote_function(dispatch="all")
        def reduce(self):
            dist.init_process_group("gloo")
            total = torch.tensor([float(self.rank + 1)])
            dist.all_reduce(total)
            dist.destroy_process_group()
            return float(total)

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows):
            return np.repeat(np.array(rows, dtype=np.float64)[:, None], COLUMNS, 1)

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def firsts(self, rows):
            return [float(row[0]) for row in rows]

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def same(self, rows):
            return [(self.rank, int(row)) for row in rows]

        @twinkle.remote_function(dispatch="all")
        def received(self):
            return self.whole[:, 0].tolist() + [float(self.whole.std(1).max())]

    def handed():
        before = len(twinkle.stats())
        got = far.firsts(wide.make(list(range(ROWS)))).result()
        made, taken = twinkle.stats()[before:]
        return {
            "values": got,
            "produced": made.bytes_produced,
            "fetched": taken.bytes_fetched,
            "driver": [made.driver_fetched, taken.driver_fetched, taken.driver_sent],
        }

    def explained():
        made = wide.make(list(range(ROWS)))
        made.wait()
        told = twinkle.explain(far.firsts, made)
        return {"moves": told.moves, "text": str(told)}

    def loaded():
        loader = DataLoader(list(range(26)), batch_size=12, tail="short", device_mesh=wide_mesh, remote_group="wide")
        return [far.same(batch).result() for batch in loader]

    def synced():
        with WeightSync(wide, far) as sync:
            return [sync(), sync(), *far.received().result()]

    def counted():
        calls = [far.add() for _ in range(50)]
        return [call.result() for call in calls][-1]

    def wait_for(what):
        print(what, flush=True)
        sys.stdin.readline()

    def start(groups):
        twinkle.initialize("ray", groups=groups, address=sys.argv[1], placement_timeout=10.0)

    if __name__ == "__main__":
        wide_group = DeviceGroup("wide", 3, "CPU")
        others = [DeviceGroup(name, size, kind) for name, size, kind in (
            ("near", 1, "one"), ("twins", 2, "two"), ("far", 2, "three"))]
        start([wide_group, *others])
        wide = Part(remote_group="wide", device_mesh=wide_mesh)
        far = Part(remote_group="far", device_mesh=far_mesh)
        near, twins = Rank(remote_group="near"), Rank(remote_group="twins")
        report("WHERE", lambda: [wide.where().result(), near.where().result(), far.where().result()])
        report("REDUCE", lambda: wide.reduce().result())
        report("HANDED", handed)
        report("BROUGHT", lambda: far.make(list(range(ROWS))).result()[:, 0].tolist())
        report("EXPLAINED", explained)
        report("LOADED", loaded)
        report("SYNCED", synced)
        wait_for("SLOW?")
        report("SLOW", handed)
        wait_for("LOSSY?")
        report("LOSSY", lambda: [handed(), loaded(), synced(), counted()])
        for name, work in {"OUT_HANDED": handed, "OUT_SYNCED": synced, "OUT_COUNTED": counted}.items():
            wait_for("OUT?")
            if work is counted:
                time.sleep(1.0)
            report(name, work)
        wait_for("PARTED?")
        report("PARTED", handed)
        wait_for("QUICK?")
        report("KILLED", lambda: twins.work(600.0, killed=1).result())
        made = far.make(list(range(ROWS)))
        made.wait()
        busy, over = far.work(600.0), wide.work(600.0)
        waits = {"ASKS": near.ask(far), "GATE": near.take(far.work(600.0)), "READS": near.take(made), "HERE": made}
        time.sleep(1.0)
        wait_for("CUT?")
        report("CUT", lambda: busy.result())
        report("NEXT", lambda: far.where().result())
        report("OVER", lambda: over.result())
        for name, lazy in waits.items():
            report(name, lazy.result)
        report("OTHER", lambda: near.work(0.0).result())
        report("END", twinkle.shutdown)
        report("TOO_FEW", lambda: start([wide_group]))
        report("AGAIN", lambda: start([DeviceGroup("left", 2, "CPU")]))
        left = Rank(remote_group="left")
        report("LEFT", lambda: left.where().result())
        report("LAST", twinkle.shutdown)
"""
BEFORE = ("WHERE", "REDUCE", "HANDED", "BROUGHT", "EXPLAINED", "LOADED", "SYNCED")
OUT = ("OUT_HANDED", "OUT_SYNCED", "OUT_COUNTED")
AFTER = ("CUT", "NEXT", "OVER", "ASKS", "GATE", "READS", "HERE", "OTHER", "END", "TOO_FEW", "AGAIN", "LEFT", "LAST")
"""The reports on quiet links, while a link is down for some seconds, and after it is cut."""
OUTAGE = 3.0
BEGUN = 0.5  # seconds until then, of a hand-over or sync that takes longer
PAYLOAD = 30 * 50_000 * 8


@pytest.fixture(scope="module")
def told(
    make_hosts: Callable[[], Hosts], programs: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the program reported, by name."""
    hosts = make_hosts()
    variables = environment(hosts, secrets.token_hex(32))
    head = start_nodes(hosts, list(hosts.addresses), variables, tmp_path_factory.mktemp("logs"))
    running = programs(PROGRAM, head, inside=hosts.inside("one"), **variables)
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
    running.line("PARTED?", 10)
    to_three = ["blackhole", f"{hosts.addresses['three']}/32"]
    hosts.run("two", "ip", "route", "add", *to_three)
    running.say("parted")
    out["PARTED"] = running.report("PARTED", 60)
    running.line("QUICK?", 10)
    hosts.run("two", "ip", "route", "delete", *to_three)
    running.say("quick")
    out["KILLED"] = running.report("KILLED", 30)
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
    assert [[row for _, row in batch] for batch in batches] == [list(range(12)), list(range(12, 24)), [24, 25]]
    assert [len([rank for rank, _ in batch if rank == 0]) for batch in batches] == [6, 6, 1]


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


def test_a_host_that_one_other_host_cannot_reach_is_named_within_15_seconds(told: dict[str, Any]) -> None:
    parted = told["PARTED"]
    assert parted["kind"] == "WorkerDiedError" and parted["seconds"] < 15, parted
    gone = (
        r"\d+ bytes of wide\[1/3\] cannot be read: its node at 10.77.0.2:\d+ cannot be reached from three: it does not"
    )
    assert re.search(gone, parted["text"]) and "far[" in parted["text"].splitlines()[0], parted


def test_a_worker_that_is_killed_on_another_host(told: dict[str, Any]) -> None:
    killed = told["KILLED"]
    assert killed["kind"] == "WorkerDiedError" and killed["seconds"] < 15
    first = killed["text"].splitlines()[0]
    assert first.startswith("twins[1/2] died during Rank.work on two pid ") and "SIGKILL" in first


def test_a_host_that_is_cut_off_is_named_within_15_seconds(told: dict[str, Any]) -> None:
    cut = told["CUT"]
    assert cut["kind"] == "WorkerDiedError" and cut["seconds"] < 15, cut
    first = cut["text"].splitlines()[0]
    assert re.match(r"far\[[01]/2 dp=[01]\] died during Part.work on three pid \d+: its node at 10.77.0.3:\d+ ", first)
    assert "does not answer" in first or "cannot be reached" in first
    assert told["NEXT"]["kind"] == "WorkerDiedError" and told["NEXT"]["seconds"] < 5


def test_a_group_with_one_rank_on_the_lost_host_names_it(told: dict[str, Any]) -> None:
    assert told["OVER"]["kind"] == "WorkerDiedError" and told["OVER"]["seconds"] < 5, told["OVER"]
    assert "wide[2/3" in told["OVER"]["text"] and "10.77.0.3" in told["OVER"]["text"]


def test_whoever_waits_for_a_lost_host_is_told_within_15_seconds(told: dict[str, Any]) -> None:
    asks, gate, reads, here = (told[name] for name in ("ASKS", "GATE", "READS", "HERE"))
    seconds = {name: told[name]["seconds"] for name in ("CUT", "NEXT", "OVER", "ASKS", "GATE", "READS", "HERE")}
    assert sum(seconds.values()) < 15, seconds
    died = r"far\[[01]/2( dp=[01])?\] died during Part.work on three pid \d+: its node at 10.77.0.3:\d+ does not answer"
    assert re.search(died, asks["text"]), asks
    assert gate["text"].startswith("Rank.take did not run, because the call that makes its argument failed: "), gate
    assert re.search(died, gate["text"]), gate
    gone = r"\d+ bytes of far\[[01]/2\] cannot be read: its node at 10.77.0.3:\d+ does not answer"
    assert re.search(gone, reads["text"]) and "near[0/1]" in reads["text"], reads
    assert re.search(gone, here["text"]), here


def test_the_other_hosts_go_on(told: dict[str, Any]) -> None:
    assert told["OTHER"]["value"] == 0, told["OTHER"]


def test_the_session_ends_and_another_one_runs_on_the_other_hosts(told: dict[str, Any]) -> None:
    assert told["END"]["kind"] == "" and told["END"]["seconds"] < 20
    assert told["TOO_FEW"]["kind"] == "PlacementError"
    assert "10.77.0.3, which does not answer" in told["TOO_FEW"]["text"]
    assert told["AGAIN"]["kind"] == ""
    assert [host for host, *_ in told["LEFT"]["value"]] == ["one", "two"]
    assert told["LAST"]["kind"] == "" and told["left over"] == []
