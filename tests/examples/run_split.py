"""Losses and gradients of a model in each layout (pp x dp x tp), in real processes: `run_split.py folder 2x2x2 1x1x1`.

The processes are forked from one that has torch loaded, which would take each of them seconds of a core.
"""

import logging
import multiprocessing
import sys
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from post_training import grpo_loss, next_word_loss
from split_gpt import Loss, Rows, SplitGPT, torch_mesh
from tiny_gpt import Size, TinyGPT

from twinkle import DeviceMesh

SEED = 3
SIZE = Size(vocabulary=96, context=12, width=32, heads=4, blocks=3)


def cases() -> dict[str, tuple[torch.Tensor, Rows, Loss]]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(SIZE.vocabulary, (16, SIZE.context), generator=generator)
    written = words[:, 5:]
    rows = {
        "written": written,
        # Near the model's own, and far enough for some ratios to be clipped.
        "logprobs": -torch.rand(written.shape, generator=generator) - 4.2,
        "advantages": torch.randn(len(words), 1, generator=generator),
    }
    inputs = words[:, :-1]
    return {"next_word": (inputs, {"next": words[:, 1:]}, next_word_loss), "grpo": (inputs, rows, grpo_loss)}


def run_rank(rank: int, folder: Path, sizes: tuple[int, ...]) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    pp, dp, tp = sizes
    store = dist.FileStore(str(folder / "store"), prod(sizes))  # type: ignore[attr-defined]  # exported without a stub
    dist.init_process_group("gloo", store=store, rank=rank, world_size=prod(sizes))
    mesh = torch_mesh(DeviceMesh.from_sizes(pp_size=pp, dp_size=dp, tp_size=tp, device_type="cpu"))
    gpt = SplitGPT(SIZE, SEED, mesh, micro_batches=2)
    for name, (words, rows, loss) in cases().items():
        mine = slice(*(len(words) * (mesh.get_local_rank("dp") + i) // dp for i in range(2)))
        mean = gpt.backward(words[mine], {key: column[mine] for key, column in rows.items()}, loss)
        gradients = {key: value.grad.full_tensor() for key, value in gpt.model.named_parameters()}  # type: ignore[union-attr]  # they are DTensors, with a gradient
        torch.save((mean, gradients), folder / f"{name}-{rank}.pt")
        gpt.model.zero_grad()
    dist.destroy_process_group()


def run_whole(folder: Path) -> None:
    for name, (words, rows, loss) in cases().items():
        model = TinyGPT(SIZE, SEED)
        mean = loss(model(words), rows)
        mean.backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.save((mean.item(), {key: value.grad for key, value in model.named_parameters()}), folder / f"{name}.pt")


def main() -> None:
    folder = Path(sys.argv[1])
    fork = multiprocessing.get_context("fork")
    for layout in sys.argv[2:]:
        sizes = tuple(map(int, layout.split("x")))
        (folder / layout).mkdir()
        ranks = [fork.Process(target=run_rank, args=(rank, folder / layout, sizes)) for rank in range(prod(sizes))]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{layout}: exit codes {[process.exitcode for process in ranks]}")
    run_whole(folder)


if __name__ == "__main__":
    main()
