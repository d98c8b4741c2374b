"""Workers on Ray: who they are, what they know, and what is left of them."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray

import twinkle_remote as twinkle
from twinkle_ray.cluster.environment import HASH_SEED, node_variable

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

JOINING = Path(__file__).parents[2] / "docs" / "howto" / "launch.md"


_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@twinkle.remote_class()
class Probe:
    @twinkle.remote_function(dispatch="all", collect="none")
    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @twinkle.remote_function(dispatch="all", collect="none")
    def order(self) -> str:
        return str(list(set(_NAMES)))

    @twinkle.remote_function(dispatch="all", collect="none")
    def thread(self) -> int:
        return threading.get_ident()

    @twinkle.remote_function(dispatch="all", collect="none")
    async def loop_thread(self) -> int:
        return threading.get_ident()

    @twinkle.remote_function(dispatch="all", timeout=60)
    def sum_over_all(self) -> int:
        import torch
        from torch import distributed

        distributed.init_process_group("gloo")
        total = torch.tensor([distributed.get_rank() + 1])
        distributed.all_reduce(total)
        distributed.destroy_process_group()
        return int(total.item())

    @twinkle.remote_function(dispatch="all", execute="first")
    def port_is_held(self) -> bool:
        with socket.socket() as other:
            try:
                other.bind(("", int(os.environ["MASTER_PORT"])))
            except OSError:
                return True
        return False


@pytest.mark.usefixtures("ray_session")
def test_ranks_and_a_rendezvous_that_torch_can_use() -> None:
    probe: Any = twinkle.on("four").create(Probe)
    found = probe.environment("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    (address, port), *others = [row[4:] for row in found]
    assert [row[:4] for row in found] == [[str(rank), str(rank), "4", "4"] for rank in range(4)]
    assert address == ray.nodes()[0]["NodeManagerAddress"] and others == [[address, port]] * 3  # type: ignore[no-untyped-call]  # Ray's own gap
    assert probe.port_is_held() is True
    assert probe.sum_over_all() == [10] * 4


@pytest.mark.usefixtures("ray_session")
def test_methods_have_one_thread_of_their_own() -> None:
    probe: Any = twinkle.on("two").create(Probe)
    before, beside, after = probe.thread(), probe.loop_thread(), probe.thread()
    assert before == after and not set(before) & set(beside)


@pytest.mark.usefixtures("ray_session")
def test_sets_have_one_order_on_all_workers() -> None:
    probes: list[Any] = [twinkle.on(group).create(Probe) for group in ("four", "two")]
    seed = node_variable(HASH_SEED)
    assert seed is not None and seed.isdecimal()
    code = f"print(list(set({_NAMES!r})))"
    told = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True)
    assert {order for probe in probes for order in probe.order()} == {told.stdout.strip()}
    assert {row[0] for probe in probes for row in probe.environment("PYTHONHASHSEED")} == {seed}


def test_lines_of_workers_begin_with_their_labels(joined_program: Callable[..., Any]) -> None:
    running = joined_program(
        """
        import sys
        import twinkle_remote as twinkle
        from twinkle_mesh import DeviceGroup, DeviceMesh

        @twinkle.remote_class()
        class Talker:
            @twinkle.remote_function(dispatch="all")
            def talk(self):
                print("my rank is", twinkle.current_worker().rank)
                print("to stderr by", twinkle.current_worker().rank, file=sys.stderr)

        if __name__ == "__main__":
            sys.stdout.reconfigure(line_buffering=True)  # Ray flushes only stderr
            with twinkle.session("ray", groups=[DeviceGroup("actor", 2, "CPU")]):
                Talker(remote_group="actor", device_mesh=DeviceMesh.from_sizes(dp_size=1, tp_size=2)).talk()()
                sys.stdin.readline()
        """,
        RAY_DEDUP_LOGS="0",  # Ray takes lines that differ in numbers for equal
    )
    seen = [running.line("(actor[", 60) for _ in range(4)]
    running.say("end")
    running.finish(60)
    said = sorted(re.sub(r" pid=\d+\)", "", line) for line in seen)
    assert said == [
        "0/2 dp=0 tp=0] my rank is 0",
        "0/2 dp=0 tp=0] to stderr by 0",
        "1/2 dp=0 tp=1] my rank is 1",
        "1/2 dp=0 tp=1] to stderr by 1",
    ]


SECRETIVE = """
    import os, sys
    from dataclasses import dataclass
    import helper
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "library"))
    import sign
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @dataclass
    class Row:
        text: str

    class OnlyHere(KeyError):
        pass

    @twinkle.remote_class()
    class Actor:
        @twinkle.remote_function()
        def seen(self):
            names = ("SECRET", "SHARED", "RAY_A", "MASTER_A")
            return {name: value for name, value in os.environ.items() if name.startswith(names)}

        @twinkle.remote_function(collect="flatten")
        def rows(self, rows):
            return [Row(helper.shout(row.text) + sign.SIGN) for row in rows]

        @twinkle.remote_function()
        def fails(self):
            raise OnlyHere("here")

    if __name__ == "__main__":
        groups = [DeviceGroup("actor", 2, "CPU")]
        before = dict(os.environ)
        twinkle.initialize("ray", groups=groups)
        assert before.items() <= os.environ.items() and "RAY_worker_niceness" not in os.environ.keys() - before.keys()
        actor = Actor(remote_group="actor")
        inherited = {"RAY_AUTH_MODE": "token", "SECRET": os.environ["SECRET"], "SHARED": "", "MASTER_ADDR": "127.0.0.1"}
        assert actor.seen() == [inherited] * 2, actor.seen()
        rows = actor.rows([Row("a"), Row("b"), Row("c")])
        assert rows == [Row("A!?"), Row("B!?"), Row("C!?")] and all(type(row) is Row for row in rows)
        try:
            actor.fails()()
        except OnlyHere as error:
            assert isinstance(error, twinkle.RemoteCallError)
        import ray
        assert ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")
        task = ray.remote(lambda: os.getpid())
        assert ray.get(task.remote(), timeout=60) != os.getpid()  # a CPU is left for tasks of one's own

        from pathlib import Path
        from ray.experimental import internal_kv
        socket = Path(ray.nodes()[0]["ObjectStoreSocketName"])
        folder = next(parent for parent in socket.parents if parent.name.startswith("twinkle-"))
        assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.getuid()
        secret = os.environ["SECRET"].encode()
        written = [path for path in folder.rglob("*") if path.is_file()]
        assert len(written) > 10 and not [path for path in written if secret in path.read_bytes()]
        for namespace in (None, "fun", "session", "job", "cluster"):
            space = None if namespace is None else namespace.encode()
            for key in internal_kv._internal_kv_list(b"", namespace=space):
                assert secret not in (internal_kv._internal_kv_get(key, namespace=space) or b"")
        twinkle.shutdown()
        assert not folder.exists()
        sys.stdout.flush()
        print("READY", flush=True)
"""


def test_environment_modules_classes_and_the_end(program: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def shout(text):\n    return text.upper() + '!'\n")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "sign.py").write_text("SIGN = '?'\n")
    home = tmp_path / "home"
    home.mkdir()
    running = program(SECRETIVE, SECRET="canary-20260729", SHARED="", HOME=str(home))
    out = running.finish(90)
    assert out.splitlines()[-1] == "READY"
    assert "Warning" not in out and "WARNING" not in out
    assert running.left_over(10) == []
    token = home / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_a_running_cluster_is_joined_and_left(program: Callable[..., Any]) -> None:
    options, *_ = re.findall(r"^with twinkle\.session\((.*)\):$", JOINING.read_text(), re.MULTILINE)
    groups = """groups=[DeviceGroup("actor", ranks=8, device_type="GPU")]"""
    of_the_docs = f"twinkle.initialize({options.replace('groups=groups', groups)})"
    out = program(
        """
        import os
        import sys
        import time
        from pathlib import Path
        import ray
        from program_tools import start_cluster
        import twinkle_remote as twinkle
        from twinkle_mesh import DeviceGroup

        @twinkle.remote_class()
        class Actor:
            @twinkle.remote_function()
            def node(self):
                import ray
                return ray.get_runtime_context().get_node_id()

            @twinkle.remote_function()
            def seen(self):
                return sorted(name for name in os.environ if name.startswith(("HF_", "MY_", "NCCL_")))

        if __name__ == "__main__":
            for name in [name for name in os.environ if name.startswith(("HF_", "MY_", "NCCL_"))]:
                del os.environ[name]  # another test may have set it, and the cluster's processes inherit it
            cluster = start_cluster(num_cpus=2)
            mine = {"HF_HOME": "canary-1", "HF_TOKEN": "canary-2", "MY_VAR": "canary-3", "NCCL_DEBUG": "canary-4"}
            os.environ.update(mine)
            for by in ("address", "variable", "connection"):
                options = {"address": cluster.address} if by == "address" else {}
                if by == "variable":
                    os.environ["RAY_ADDRESS"] = cluster.address
                if by == "connection":
                    del os.environ["RAY_ADDRESS"]
                    ray.init(address=cluster.address, logging_level="ERROR")
                options["env_allow"] = "MY_*"
                with twinkle.session("ray", groups=[DeviceGroup("actor", 2, "CPU")], **options):
                    actor = Actor(remote_group="actor")
                    assert set(actor.node()) == {cluster.head_node.node_id}
                    assert actor.seen() == [["HF_HOME", "MY_VAR", "NCCL_DEBUG"]] * 2, actor.seen()
                assert ray.is_initialized() == (by == "connection")
            ray.shutdown()
            here = {"10.0.0.1:6379": cluster.address, "ranks=8": "ranks=2", "GPU": "CPU"}
            for there, own in here.items():
                assert there in sys.argv[1]
                sys.argv[1] = sys.argv[1].replace(there, own)
            exec(sys.argv[1], {"twinkle": twinkle, "DeviceGroup": DeviceGroup})
            assert ray.get_runtime_context().gcs_address == cluster.address
            assert Actor(remote_group="actor").node()() == [cluster.head_node.node_id] * 2
            twinkle.shutdown()
            ray.init(address=cluster.address, logging_level="ERROR")
            until = time.monotonic() + 60
            while ray.available_resources().get("CPU") != 2:
                assert time.monotonic() < until, ray.available_resources()
            folder = Path(cluster.head_node.get_session_dir_path())
            written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
            assert len(written) > 10 and not [text for text in written if b"canary-" in text]
            ray.shutdown()
            cluster.shutdown()
            print("READY")
        """,
        of_the_docs,
    ).finish(110)
    assert "READY" in out
    assert "canary-" not in out
