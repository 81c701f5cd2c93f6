"""The loop steps with every optimizer, even those that ask for gradients twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from glake.trainer.loop import Experiment, train
from glake.trainer.models import sizes
from glake.trainer.optimizers import AGD, WSAM, AdamW, Optimizer


def loss(optimizer: Optimizer.Config, folder: Path) -> float:
    """The loss of the fourth step, with two passes a step."""
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    config = Experiment.Config(
        model=sizes.llama(1, 32, 2, 48, vocabulary=256),
        optimizer=optimizer,
        steps=4,
        sequences=2,
        accumulation=2,
    )
    config.set("data.path", str(folder / "text"))
    config.set("data.length", 32)
    config.set("schedule.shape", "constant")
    return train(config).loss


def test_agd_and_wsam_train(tmp_path: Path) -> None:
    base = AdamW.Config(lr=1e-2)
    plain = loss(base, tmp_path)
    assert plain < 5.2
    assert loss(AGD.Config(lr=1e-3), tmp_path) < 5.5
    # With gamma 0 the second gradients are made, but do not count.
    assert loss(WSAM.Config(base=base, gamma=0.0), tmp_path) == pytest.approx(plain, abs=1e-6)
    sharp = loss(WSAM.Config(base=base, gamma=0.9), tmp_path)
    assert sharp < 5.5 and sharp != pytest.approx(plain, abs=1e-4)
