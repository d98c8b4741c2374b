from sft import train


def test_loss_falls() -> None:
    losses = train(None, "local", 1, steps=40, rate=5e-3)
    assert sum(losses[-3:]) / 3 < losses[0] - 1.0
