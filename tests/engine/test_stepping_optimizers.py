"""The learning rate as a function of the step, by hand."""

import pytest

from stablenet.engine.config import TrainConfig
from stablenet.engine.stepping import learning_rate


def test_schedules():
    steps = TrainConfig(learning_rate=1.0, milestones=(2, 4), decay=0.1)
    assert [learning_rate(steps, e, 0, 9) for e in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = TrainConfig(learning_rate=1.0, schedule="cosine")
    assert [learning_rate(cosine, 0, s, 4) for s in range(5)] == pytest.approx(
        [1, 0.853553, 0.5, 0.146447, 0], abs=1e-6
    )
    quarter = TrainConfig(learning_rate=1.0, schedule="quarter-cosine", epochs=30)
    found = [learning_rate(quarter, epoch, step, 90) for epoch, step in ((0, 0), (0, 2), (15, 45), (29, 89))]
    assert found == pytest.approx([1, 1, 0.710007, 0.061719], abs=1e-6)  # (0.01 + cos(πe/60)) / 1.01
    assert learning_rate(TrainConfig(learning_rate=1.0, schedule="constant"), 29, 10, 10) == 1.0
