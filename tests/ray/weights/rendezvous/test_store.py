from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from twinkle_ray.weights.rendezvous.heartbeat import Heartbeat, LivenessMonitor
from twinkle_ray.weights.rendezvous.session import Phase, Session, SessionStore
from twinkle_ray.weights.rendezvous.store import StoreClient, StoreServer
from twinkle_ray.weights.transport.gloo import GlooLink
from twinkle_ray.weights.transport.protocol import LinkMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1")
    yield server
    server.close()


def session(server: StoreServer, size: int = 1, generation: int = 1) -> Session:
    return Session(generation=generation, at=server.address, size=size, kind="gloo", links=True, timeout=20.0)


def test_it_is_a_torch_store(server: StoreServer) -> None:
    client, other = StoreClient(server.address), StoreClient(server.address)
    store = PrefixStore("x", client)
    store.set("a", "1")
    assert store.get("a") == b"1" and other.get("x/a") == b"1"
    assert (store.check(["a"]), store.check(["a", "b"])) == (True, False)
    assert (store.add("n", 3), store.add("n", -1), other.get("x/n")) == (3, 2, b"2")
    assert store.compare_set("c", "", "first") == b"first"
    assert store.compare_set("c", "", "second") == b"first"
    assert store.compare_set("c", "first", "second") == b"second"
    assert store.delete_key("c") and not store.delete_key("c")
    other.append("x/list", "a")
    other.append("x/list", b"b")
    assert other.multi_get(["x/list", "x/a"]) == [b"ab", b"1"]
    other.put("x/a", "2")
    assert other.get("x/a") == b"2"
    threading.Timer(0.1, other.put, ("x/put", "now")).start()
    store.wait(["put"])
    with pytest.raises(RuntimeError, match=r"did not get x/never within 0.05 s"):
        store.wait(["never"], timedelta(milliseconds=50))
    began = time.monotonic()
    threading.Timer(0.1, other.set, ("x/later", "now")).start()
    store.wait(["later"], timedelta(seconds=10))
    assert time.monotonic() - began < 5.0


def test_a_stranger_is_turned_away(server: StoreServer) -> None:
    stranger = StoreClient(server.address._replace(secret="0" * 32))
    with pytest.raises(RuntimeError, match=r"the store at 127.0.0.1:\d+ is gone"):
        stranger.set("a", "b")
    assert not StoreClient(server.address).check(["a"])


def test_a_server_that_ends_releases_who_waits(server: StoreServer) -> None:
    client = StoreClient(server.address)
    threading.Timer(0.1, server.close).start()
    with pytest.raises(RuntimeError, match="is gone"):
        client.arrives(["never"], 20.0)


def test_sessions_do_not_see_each_other(server: StoreServer) -> None:
    first, second = SessionStore(session(server, generation=1)), SessionStore(session(server, generation=2))
    first.abort("old")
    first.abort("later")
    assert (first.aborted(), second.aborted()) == ("old", None)


def test_an_abort_reaches_a_busy_process_at_once(server: StoreServer) -> None:
    told = threading.Event()
    session_store, heartbeat = SessionStore(session(server)), Heartbeat(session(server), 0)
    heartbeat.guard(told.set)
    with heartbeat.during(Phase(1, "begin"), session_store):
        SessionStore(session(server)).abort("enough")
        assert told.wait(1.0) and heartbeat.reason == "enough"
    heartbeat.close()


def test_a_process_at_work_is_not_silent_and_one_that_is_away_is(server: StoreServer) -> None:
    session_store, heartbeat = SessionStore(session(server, 2)), Heartbeat(session(server, 2), 0)
    monitor = LivenessMonitor(session_store, Phase(1, "begin"), [0, 1], silence=0.5)
    with heartbeat.during(Phase(1, "begin"), SessionStore(session(server, 2))):
        silent: list[int] = []
        until = time.monotonic() + 10.0
        while not silent and time.monotonic() < until:
            silent = monitor.silent()
    assert silent == [1]
    heartbeat.close()


def test_an_abort_ends_every_wait_of_a_link(server: StoreServer) -> None:
    session_stores = [SessionStore(session(server, 3)) for _ in range(3)]
    links: list[GlooLink | None] = [None] * 3

    def join(rank: int) -> None:
        session_stores[rank].arrive(rank)
        links[rank] = GlooLink(session_stores[rank].group_store(), rank, 3, timeout=20.0, host="127.0.0.1")

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    sender, receiver, third = links
    assert sender is not None and receiver is not None and third is not None
    buffer = torch.zeros(4, dtype=torch.uint8)
    (sent,) = sender.post([LinkMessage(1, 7, torch.arange(4, dtype=torch.uint8), receive=False)])
    (received,) = receiver.post([LinkMessage(0, 7, buffer, receive=True)])
    sent.wait()
    received.wait()
    received.wait()
    assert buffer.tolist() == [0, 1, 2, 3]
    (stuck,) = receiver.post([LinkMessage(2, 8, buffer, receive=True)])
    threading.Timer(0.2, receiver.abort).start()
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        stuck.wait()
    assert time.monotonic() - began < 10.0
    for link in (sender, third):
        link.close()


def test_a_client_that_leaves_while_it_waits_is_let_go(server: StoreServer) -> None:
    before = _descriptors()
    leaving = [StoreClient(server.address) for _ in range(5)]
    stay = StoreClient(server.address)
    waits = [threading.Thread(target=_wait_for_never, args=(client,)) for client in leaving]
    for thread in waits:
        thread.start()
    _until(lambda: _descriptors() >= before + 12)  # both ends of six connections
    arrived: list[bool] = []
    staying = threading.Thread(target=lambda: arrived.append(stay.arrives(["later"], 60.0)))
    staying.start()
    time.sleep(0.2)
    for client in leaving:
        client._socket.shutdown(socket.SHUT_RDWR)  # as the end of its process does
        client.close()
    for thread in waits:
        thread.join(10.0)
    _until(lambda: _descriptors() <= before + 2)
    other = StoreClient(server.address)
    other.set("later", "now")
    staying.join(10.0)
    assert arrived == [True] and stay.get("later") == b"now" == other.get("later")
    other.put("more", "1")
    assert stay.arrives(["more", "later"], 10.0) and not stay.arrives(["never"], 0.01)
    assert stay.get("more") == b"1"


def _wait_for_never(client: StoreClient) -> None:
    with suppress(RuntimeError):
        client.arrives(["never"], 600.0)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    assert holds()
