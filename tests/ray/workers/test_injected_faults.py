"""Workers, drivers and nodes that are lost: real signals against real clusters, each in a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

COMPONENTS = """
    import asyncio, ctypes, os, signal, sys, time
    import twinkle_remote as twinkle
    from program_tools import outcome
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @twinkle.remote_class()
    class Victim:
        def __init__(self, how="", device_mesh=None):
            self.calls = 0
            if twinkle.current_worker().rank == 1:
                self.suffer(how)

        def suffer(self, how):
            if how == "leave":
                sys.exit(3)
            if how == "exit":
                os._exit(3)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "term":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(600)
            if how == "segv":
                ctypes.string_at(0)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if how == "gil":
                ctypes.PyDLL(None).sleep(600)
            if how == "hang":
                time.sleep(600)

        @twinkle.remote_function(dispatch="all")
        def run(self, how, others_busy=0.0):
            self.calls += 1
            if twinkle.current_worker().rank == 1:
                self.suffer(how)
            else:
                time.sleep(others_busy)
            return self.calls

        @twinkle.remote_function(dispatch="all")
        async def dream(self, how, others_busy=0.0):
            if twinkle.current_worker().rank == 1:
                self.suffer(how)
            await asyncio.sleep(others_busy)

        @twinkle.remote_function(dispatch="all", timeout=5)
        def late(self, how):
            if twinkle.current_worker().rank == 1:
                self.suffer(how)
            return 1

    MESH = DeviceMesh.from_sizes(tp_size=2)
"""

SERVER = (
    COMPONENTS
    + """
    if __name__ == "__main__":
        names = ["exit", "kill", "term", "segv", "stop", "gil", "ctor_exit", "ctor_hang", "bystander"]
        groups = [DeviceGroup(name, 2, "CPU") for name in names]
        twinkle.initialize("ray", groups=groups, lazy_collect=False, start_timeout=240)
        bystander = Victim(remote_group="bystander", device_mesh=MESH)
        victims = {}
        print("READY", flush=True)
        for line in sys.stdin:
            what, group, *rest = line.split()
            if what == "end":
                print("TOLD", outcome(twinkle.shutdown), flush=True)
            elif what == "create":
                twinkle.sessions.session.running().backend.start_timeout = 4
                make = lambda: Victim(*rest, remote_group=group, device_mesh=MESH) and None
                print("TOLD", outcome(make), flush=True)
            else:
                if group not in victims:
                    victims[group] = Victim(remote_group=group, device_mesh=MESH)
                call = getattr(victims[group], what)
                print("TOLD", outcome(lambda: call(*rest[:1], *map(float, rest[1:]))), flush=True)
                print("BYSTANDER", outcome(lambda: bystander.run("")), flush=True)
"""
)


@pytest.fixture(scope="module")
def server(joined_programs: Callable[..., Any]) -> Any:
    running = joined_programs(SERVER)
    running.line("READY", 110)
    return running


def ask(server: Any, line: str, timeout: float = 40) -> dict[str, Any]:
    server.say(line)
    told: dict[str, Any] = server.report("TOLD", timeout)
    return told


@pytest.mark.parametrize(("method", "how"), [("run", "exit"), ("dream", "kill"), ("run", "term"), ("run", "segv")])
def test_a_lost_worker_is_told_at_once(server: Any, method: str, how: str) -> None:
    told = ask(server, f"{method} {how} {how} 120")
    assert told["kind"] == "WorkerDiedError"
    assert told["seconds"] < 60
    first, line, *_ = told["text"].splitlines()
    assert first.startswith(f"{how}[1/2 dp=0 tp=1] died during Victim.{method} on ")
    assert "its process ended without an error" in first
    assert line.startswith("  called from ") and "program0.py:" in line
    assert server.report("BYSTANDER", 20)["kind"] == ""
    again = ask(server, f"late {how} none", 60)
    assert again["kind"] == "WorkerDiedError"
    assert f"it was lost before this call, during Victim.{method}" in again["text"]


@pytest.mark.parametrize("how", ["stop", "gil"])
def test_a_worker_that_does_not_answer_is_late(server: Any, how: str) -> None:
    told = ask(server, f"late {how} {how}")
    assert told["kind"] == "CallTimeoutError"
    assert 4.9 < told["seconds"] < 60
    assert f"ranks [0] are done, ranks [1] are not: {how}[1/2 dp=0 tp=1]" in told["text"]
    assert "it does not answer" in told["text"]
    assert server.report("BYSTANDER", 20)["kind"] == ""


def test_a_constructor_that_exits_or_hangs_on_one_rank(server: Any) -> None:
    told = ask(server, "create ctor_exit exit")
    assert told["kind"] == "WorkerDiedError" and "during Victim.__init__" in told["text"]
    told = ask(server, "create ctor_hang hang")
    assert told["kind"] == "CallTimeoutError" and told["seconds"] < 60
    assert "in suffer" in told["text"] and "ctor_hang[1/2 dp=0 tp=1]" in told["text"]


@pytest.mark.parametrize("method", ["run", "dream"])
def test_an_exit_in_a_method_is_a_failure_of_the_call(server: Any, method: str) -> None:
    told = ask(server, f"{method} bystander leave")
    assert told["kind"] == "RemoteCallError" and f"Victim.{method} failed on bystander[1/2" in told["text"]
    assert "SystemExit: 3" in told["text"] and server.report("BYSTANDER", 20)["kind"] == ""


def test_the_session_ends_and_nothing_is_left_of_all_that(server: Any) -> None:
    told = ask(server, "end now")
    assert told["kind"] == "" and told["seconds"] < 60
    assert server.left_over(10) == []


DRIVER = (
    COMPONENTS
    + """
    if __name__ == "__main__":
        twinkle.initialize("ray", groups=[DeviceGroup("victims", 2, "CPU")], lazy_collect=False)
        victim = Victim(remote_group="victims")
        import ray
        print("READY", ray.nodes()[0]["ObjectStoreSocketName"].partition("/r/")[0], flush=True)
        victim.run("hang")
    """
)
SIGNALS = ("SIGINT", "SIGKILL")


RAY_SECONDS = 75  # an agent of Ray that finds its raylet dead tells the GCS, which is dead too, with a limit of 60 s


@pytest.fixture(scope="module")
def drivers(programs: Callable[..., Any]) -> dict[str, tuple[Any, Path]]:
    """A program for each signal, which has got it, and the folder of its own cluster: they start and end together."""
    started = {name: programs(DRIVER, name) for name in SIGNALS}
    out = {name: (running, Path(running.line("READY", 110))) for name, running in started.items()}
    for name, (running, folder) in out.items():
        assert folder.name.startswith("twinkle-") and folder.exists()
        # Ctrl-C of a terminal goes to all processes of the program's group.
        (os.killpg if name == "SIGINT" else os.kill)(running.process.pid, getattr(signal, name))
    return out


@pytest.mark.parametrize("signal_name", SIGNALS)
def test_an_ended_driver_leaves_no_process(drivers: dict[str, tuple[Any, Path]], signal_name: str) -> None:
    running, folder = drivers[signal_name]
    running.process.wait(200)
    assert running.left_over(RAY_SECONDS) == []
    assert signal_name == "SIGKILL" or not folder.exists()


def test_a_group_is_rebuilt_on_request(joined_program: Callable[..., Any]) -> None:
    running = joined_program(
        COMPONENTS
        + """
    if __name__ == "__main__":
        import twinkle_ray

        @twinkle.remote_class()
        class Keeper(Victim):
            def __init__(self, values, device_mesh=None):
                super().__init__("")
                self.values, self.restored = [values], False

            def restore(self):
                self.restored = True

            @twinkle.remote_function(dispatch="all")
            def told(self):
                return [os.getpid(), self.values, self.restored, self.calls]

        @twinkle.remote_class()
        class Asker:
            def __init__(self, keeper):
                self.keeper = keeper

            @twinkle.remote_function(dispatch="all", collect="first")
            def ask(self):
                told = self.keeper.told()
                assert not isinstance(told, twinkle.Lazy)  # the defaults of the session reach its workers
                return told

        groups = [DeviceGroup("actor", 2, "CPU"), DeviceGroup("asker", 1, "CPU")]
        twinkle.initialize("ray", groups=groups, lazy_collect=False, restart="group")
        made = Victim(remote_group="asker")
        lazy = twinkle.submit(made.run, "")
        keeper = Keeper(lazy, remote_group="actor", device_mesh=MESH)
        asker = Asker(keeper, remote_group="asker")
        first = keeper.told()
        assert first == asker.ask() and [row[1:] for row in first] == [[[1], False, 0]] * 2, first
        print("LOST", outcome(lambda: keeper.run("kill")), flush=True)
        twinkle_ray.restart("actor")
        twinkle_ray.restart("asker")
        again = keeper.told()
        assert again == asker.ask() and [row[1:] for row in again] == [[[1], True, 0]] * 2, again
        assert not {row[0] for row in first} & {row[0] for row in again}
        twinkle.shutdown()
    """
    )
    assert running.report("LOST", 110)["kind"] == "WorkerDiedError"
    running.finish(30)
    assert running.left_over(10) == []
