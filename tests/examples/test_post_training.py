import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from post_training import GROUP, PROMPT, STREAMED, Options, Rewards, Rollouts, Sampler, train
from text import encode, passages, share_of_real_phrases
from tiny_gpt import Size

import twinkle
from twinkle import DeviceGroup, DeviceMesh

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = Size(context=16, blocks=2)


def run(
    mode: str, folder: Path, *options: str, environment: dict[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(EXAMPLES / "post_training.py"), "--mode", mode, "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads((folder / "post_training.json").read_text())
    return figures, done.stdout


STEPS = ("--sft-steps", "4", "--steps", "2", "--seed", "5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process finds, for all that is compared with it."""
    return run("local", tmp_path_factory.mktemp("local"), *STEPS)[0]


@pytest.mark.ray
@pytest.mark.timeout(1000)
def test_one_process_and_twelve_workers_give_the_same_numbers(
    whole: dict[str, Any], joining: dict[str, str], tmp_path: Path
) -> None:
    split, told = run("ray", tmp_path / "ray", *STEPS, environment=joining)
    assert len(whole["losses"]) == 4 and len(whole["rewards"]) == 2
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert split["rewards"] == pytest.approx(whole["rewards"], abs=1e-3)
    assert (tmp_path / "ray" / "post_training.png").read_bytes().startswith(b"\x89PNG")
    assert f"curves: {tmp_path / 'ray' / 'post_training.png'}" in told


def test_a_loop_elsewhere_gives_the_same_numbers(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINKLE_TOKEN", "a token for tests")
    command = [sys.executable, str(EXAMPLES / "post_training.py"), "--mode", "local", "--serve", "0", "--seed", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            served, _ = run("http", tmp_path / "http", "--address", address, *STEPS)
            server.terminate()
            assert server.wait(60) == 143  # what SIGTERM gives after the server has drained
        finally:
            server.kill()
    assert (served["losses"], served["rewards"]) == (whole["losses"], whole["rewards"])


def test_loss_falls_and_reward_rises() -> None:
    history = train(Options("local", sft_steps=50, steps=8, seed=1), SMALL)
    assert sum(history.losses[-5:]) / 5 < history.losses[0] - 1.0
    assert sum(history.rewards[-3:]) > 2 * sum(history.rewards[:3])
    assert len(history.before) == len(history.after) == 4 and history.before != history.after


def test_samples_do_not_depend_on_how_prompts_are_split() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=1, device_type="cpu")
    sampler = Sampler(SMALL, 0, device_mesh=mesh)
    texts = passages(PROMPT, every=1000)[:4]
    prompts = [(7, text) for text in texts]
    together = sampler.sample(prompts)
    halves = [sampler.sample(prompts[:1]), sampler.sample(prompts[1:])]
    assert torch.equal(together.words, torch.cat([half.words for half in halves]))
    assert together.words.shape == (4, GROUP, SMALL.context)
    assert together.words[0, 3, :PROMPT].tolist() == encode(texts[0], SMALL.vocabulary)
    assert not torch.equal(together.words, sampler.sample([(8, text) for text in texts]).words)
    assert sampler.sample([]).words.shape == (0, GROUP, SMALL.context)


def test_advantages_compare_the_texts_of_one_prompt() -> None:
    rewards = Rewards(Size(), device_mesh=DeviceMesh.from_sizes(dp_size=1, device_type="cpu"))
    size = Size().vocabulary
    real = torch.tensor([encode(passage, size) for passage in passages(32, every=500)[:GROUP]])
    words = torch.stack([real, real])
    words[:, GROUP // 2 :, PROMPT:] = 0
    nothing = torch.zeros(2, GROUP)
    graded = rewards.grade(Rollouts(words, torch.zeros(2, GROUP, 24), nothing, nothing))
    assert graded.rewards[0, 0].item() == pytest.approx(share_of_real_phrases(words[0, 0, PROMPT - 2 :].tolist(), size))
    assert graded.rewards[:, : GROUP // 2].min() > graded.rewards[:, GROUP // 2 :].max()
    assert graded.advantages.mean(dim=1).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert graded.advantages.std(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-2)


@pytest.mark.parametrize("ahead", [0, 32])
def test_samplers_that_work_ahead_write_the_same_texts(ahead: int) -> None:
    texts = passages(PROMPT, every=500)[:36]
    prompts = [[(step, text) for text in texts[16 * step : 16 * step + 16]] for step in range(3)]
    mesh = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 2, "cpu")]):
        sampler = Sampler(SMALL, 0, device_mesh=mesh, remote_group="sampler")
        rewards = Rewards(SMALL, device_mesh=mesh, remote_group="sampler")
        by_hand = [twinkle.get(rewards.grade(sampler.sample(batch))) for batch in prompts]
        found: dict[int, Rollouts] = {}
        with twinkle.stream(prompts, sampler.sample, rewards.grade, ahead=ahead, **STREAMED) as rollouts:
            for batch in rollouts:
                graded = twinkle.get(batch)
                assert rollouts.info is not None
                assert len(graded.words) == len(rollouts.info.indices) <= 16
                for row, index in enumerate(rollouts.info.indices):
                    found[index] = Rollouts(*(part[row] for part in vars(graded).values()))
    assert sorted(found) == list(range(36))
    assert torch.equal(torch.stack([found[row].words for row in range(36)]), torch.cat([one.words for one in by_hand]))
    expected = torch.cat([one.advantages for one in by_hand])
    assert torch.allclose(torch.stack([found[row].advantages for row in range(36)]), expected, atol=1e-5)
