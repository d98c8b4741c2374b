"""The program of test_joined.py: it joins a cluster over three hosts, one of which is cut off."""

from __future__ import annotations

JOINED = """
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
            self.rank, self.size = worker.rank, worker.world_size

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

    @twinkle.remote_class()
    class Part(Rank):
        whole = None

        def weights(self):
            if self.size == 2:
                if self.whole is None:
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
            "produced": sum(made.produced.values()),
            "fetched": taken.bytes_fetched,
            "driver": [made.driver_fetched, taken.driver_fetched, taken.driver_sent],
        }

    def loaded():
        loader = DataLoader(list(range(26)), batch_size=12, drop_last=False, device_mesh=wide_mesh, remote_group="wide")
        return [far.same(batch).result() for batch in loader]

    def synced():
        with WeightSync(wide, far) as sync:
            return [sync(), sync(), *far.received().result()]

    def wait_for(what):
        print(what, flush=True)
        sys.stdin.readline()

    def start(groups, seconds=10.0):
        twinkle.initialize("ray", groups=groups, address=sys.argv[1], placement_timeout=seconds)

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
        report("LOADED", loaded)
        report("SYNCED", synced)
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
        report("TOO_FEW", lambda: start([wide_group], 4.0))
        report("AGAIN", lambda: start([DeviceGroup("left", 2, "CPU")]))
        left = Rank(remote_group="left")
        report("LEFT", lambda: left.where().result())
        report("LAST", twinkle.shutdown)
"""
