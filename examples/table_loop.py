"""Batches as tables: a PPO step in minibatches, rows of older batches again, and supervised rows next to sampled ones.

    python examples/table_loop.py [--mode threads|ray]

The model is a table of logits, so that the loop is all there is to read: the sampler draws a digit for each prompt, and
a reward is 1 where it is the prompt's. Rows are taken, joined and mixed on the workers. This process sees rewards
alone.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from typing import Any, Literal

import twinkle
from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

DIGITS = 4
Rows = dict[str, list[Any]]


def log_softmax(logits: list[float]) -> list[float]:
    """Log-probabilities of logits."""
    largest = max(logits)
    total = math.log(sum(math.exp(one - largest) for one in logits)) + largest
    return [one - total for one in logits]


@remote_class()
class Sampler:
    def __init__(self) -> None:
        self.logits = [[0.0] * DIGITS for _ in range(DIGITS)]
        self._draw = random.Random(twinkle.current_worker().rank)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, prompts: list[int]) -> Rows:
        """One answer for each prompt, with its log-probability and a text that only the grader reads."""
        probabilities = [log_softmax(self.logits[prompt]) for prompt in prompts]
        answers = [self._draw.choices(range(DIGITS), list(map(math.exp, row)))[0] for row in probabilities]
        logprobs = [row[answer] for row, answer in zip(probabilities, answers, strict=True)]
        texts = [f"{prompt} is {answer}" for prompt, answer in zip(prompts, answers, strict=True)]
        return {"prompt": prompts, "answer": answers, "logprob": logprobs, "text": texts}

    @remote_function(dispatch="all")
    def load(self, logits: list[list[float]]) -> None:
        self.logits = logits


@remote_class()
class Grader:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: Rows) -> Rows:
        """The advantage of each row."""
        return {"advantage": [1.0 if text[0] == text[-1] else -1.0 / (DIGITS - 1) for text in rows["text"]]}


@remote_class()
class Actor:
    def __init__(self) -> None:
        self.logits = [[0.0] * DIGITS for _ in range(DIGITS)]

    @remote_function(dispatch="slice_dp", collect="mean")
    def gradient(self, rows: Rows, clip: float = 0.2) -> dict[str, list[list[float]]]:
        """The mean gradient of the clipped loss of PPO; a row whose `logprob` is None is a supervised one."""
        found = [[0.0] * DIGITS for _ in range(DIGITS)]
        count = max(len(rows["prompt"]), 1)
        columns = (rows[name] for name in ("prompt", "answer", "logprob", "advantage"))
        for prompt, answer, old, advantage in zip(*columns, strict=True):
            now = log_softmax(self.logits[prompt])
            ratio = 1.0 if old is None else math.exp(now[answer] - old)
            if (ratio > 1 + clip and advantage > 0) or (ratio < 1 - clip and advantage < 0):
                continue
            for digit in range(DIGITS):
                found[prompt][digit] += ratio * advantage * ((digit == answer) - math.exp(now[digit])) / count
        return {"logits": found}

    @remote_function(dispatch="all", collect="first")
    def step(self, gradient: dict[str, list[list[float]]], rate: float) -> list[list[float]]:
        for own, other in zip(self.logits, gradient["logits"], strict=True):
            own[:] = [logit + rate * one for logit, one in zip(own, other, strict=True)]
        return self.logits


def supervised(prompts: list[int]) -> Rows:
    """Rows with the right answers, in the columns of sampled ones."""
    n = len(prompts)
    columns: Rows = {"prompt": prompts, "answer": prompts, "logprob": [None] * n, "text": [""] * n}
    return {**columns, "advantage": [1.0] * n}


def main(mode: Literal["threads", "ray"] = "threads", steps: int = 12, seed: int = 0) -> list[float]:
    """Run the loop; returns the mean advantage of each step's new rows."""
    draw = random.Random(seed)
    names = ("sampler", "grader", "actor")
    means: list[float] = []
    with twinkle.session(mode, groups=[DeviceGroup(name, 2, "CPU") for name in names], seed=seed):
        mesh = DeviceMesh.from_sizes(dp_size=2)
        sampler = twinkle.on("sampler", mesh).create(Sampler)
        grader = twinkle.on("grader", mesh).create(Grader)
        actor = twinkle.on("actor", mesh).create(Actor)
        older: deque[Any] = deque(maxlen=3)
        for _ in range(steps):
            sampled: Any = sampler.sample([draw.randrange(DIGITS) for _ in range(32)])
            new: Any = twinkle.join(sampled, grader.grade(twinkle.select(sampled, "text")))
            advantages = twinkle.get(twinkle.select(new, "advantage"))["advantage"]  # the one column that comes here
            means.append(sum(advantages) / len(advantages))
            best = sorted(range(32), key=advantages.__getitem__, reverse=True)[:8]
            mixed = twinkle.concat([new, *older, supervised([draw.randrange(DIGITS) for _ in range(8)])])
            read = twinkle.select(mixed, "prompt", "answer", "logprob", "advantage")  # the texts stay where they are
            for rows in twinkle.minibatches(read, 16, epochs=2):
                logits = actor.step(actor.gradient(rows), rate=2.0)
            sampler.load(logits)
            older.append(twinkle.take(new, best))
    return means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="threads", choices=["threads", "ray"])
    for number, mean in enumerate(main(parser.parse_args().mode)):
        print(f"step {number}: mean advantage {mean:.2f}")
