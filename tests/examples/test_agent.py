"""The example of an agent learns, with its environments on workers of their own."""

from __future__ import annotations

import agent
import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_agent_learns() -> None:
    rewards = [one["reward"] for one in agent.train("threads", steps=7)]
    assert rewards[-1] > 2 * rewards[0] > 0.0, rewards
