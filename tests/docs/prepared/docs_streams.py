"""A prompt set, a sampler, a reward, an actor and a sync, in threads."""

import torch

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh, remote_class, remote_function

twinkle.initialize("threads", groups=[DeviceGroup(name, 2, "CPU") for name in ("sampler", "rewards", "actor")])


@remote_class()
class Part:
    def __init__(self, device_mesh: DeviceMesh, remote_group: str) -> None:
        self.weight = torch.zeros(4)

    def weights(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[int]:
        return [row + int(self.weight[0]) for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: list[int]) -> list[int]:
        return [row % 3 for row in rows]

    @remote_function(dispatch="slice_dp", collect="mean")
    def update(self, rows: list[int]) -> float:
        self.weight += 1
        return sum(rows) / max(len(rows), 1)


mesh = DeviceMesh.from_sizes(dp_size=2)
sampler, rewards, actor = (Part(device_mesh=mesh, remote_group=name) for name in ("sampler", "rewards", "actor"))
sync = twinkle.WeightSync(actor, sampler)
prompts = DataLoader(list(range(256)), batch_size=64, shuffle=True)
