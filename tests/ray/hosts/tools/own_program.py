"""The program of test_joined.py with a cluster of its own, which other hosts join and leave."""

from __future__ import annotations

OWN = """
    import os, signal, socket, sys, time
    import ray
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_mesh import DeviceGroup
    from twinkle_ray import restart
    from twinkle_remote.sessions.current import running

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
        return len(running().backend._agents)

    def start(*groups, **more):
        twinkle.initialize("ray", groups=groups, **more)
        return [Part(remote_group=group.name) for group in groups]

    if __name__ == "__main__":
        ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address=sys.argv[1])
        wait_for(f"HEAD {ray.get_runtime_context().gcs_address}")
        (part,) = start(DeviceGroup("all", 2, "CPU"), restart="group")
        report("WHERE", lambda: [part.where().result(), agents()])
        report("ORDER", lambda: [note.result() for note in [part.note(number) for number in range(40)]][-1])
        report("LATE", lambda: part.late().result())
        report("FAILS", lambda: part.fails().result())
        report("DIES", lambda: part.dies().result())
        wait_for("SILENT?")
        report("RESTART", lambda: restart("all"))
        report("JOINED", lambda: [part.where().result(), agents()])
        report("END", twinkle.shutdown)
        wait_for("AGAIN?")
        own, four = start(*(DeviceGroup(name, 1, kind) for name, kind in {"own": "CPU", "four": "four"}.items()))
        report("AGAIN", lambda: [own.where().result(), four.where().result()])
        other = four.work(600.0)
        wait_for("KILL?")
        report("KILLED", lambda: other.result())
        report("AFTER_KILL", lambda: four.where().result())
        report("OTHER", lambda: own.where().result())
        report("LAST", twinkle.shutdown)
        ray.shutdown()
"""
