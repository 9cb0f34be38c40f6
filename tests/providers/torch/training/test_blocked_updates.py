"""Updates of vectors in blocks: the same numbers as at once, and nothing where it is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from onward import losses, optimizers
from onward.optimizers.optimizer import Optimizer
from onward.providers.torch.training import blocked_updates
from onward.providers.torch.training.blocked_updates import BlockedUpdate, has_blocks
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

Array = np.ndarray[Any, Any]


def train(optimizer: Optimizer, feeds: Sequence[Any], **options: Any) -> dict[str, Array]:
    torch_cpu = ("TorchExecutionProvider", {"device": "cpu"})
    session = TrainingSession(
        mlp(), losses.CrossEntropy(), optimizer, options, providers=[torch_cpu]
    )
    for each in feeds:
        session.step(each)
    return {name: array.copy() for name, array in session.parameters.items()}


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.AdamW(lr=0.01),
        optimizers.Adam(lr=0.01, amsgrad=True, weight_decay=0.1),
        optimizers.SGD(lr=0.1, momentum=0.9, nesterov=True),
        optimizers.SGD(lr=0.1),
        optimizers.RMSprop(lr=0.01, momentum=0.9, centered=True),
        optimizers.Adagrad(lr=0.1),
        optimizers.Lion(lr=0.01),
        optimizers.LAMB(lr=0.01),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
@pytest.mark.parametrize("skips", [True, False])
def test_blocks_give_the_bits_of_the_whole(
    optimizer: Optimizer, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds, options = batches(4), {"skip_nonfinite": skips, "clip_norm": 0.5}
    whole = train(optimizer, feeds, **options)
    monkeypatch.setattr(blocked_updates, "BLOCK", 7)
    in_blocks = train(optimizer, feeds, **options)
    for name, array in whole.items():
        np.testing.assert_array_equal(in_blocks[name], array, err_msg=name)


def test_gradients_that_are_not_finite_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_updates, "BLOCK", 7)
    [feeds] = batches(1)
    broken = {
        name: f * np.float32(np.nan) if f.dtype == np.float32 else f for name, f in feeds.items()
    }
    before = train(optimizers.SGD(lr=0.1), [])
    after = train(optimizers.SGD(lr=0.1), [broken], skip_nonfinite=True)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_every_element_is_updated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_updates, "BLOCK", 4)
    seen: list[int] = []

    def call(p: torch.Tensor, rate: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.append(p.numel())
        return g, p - rate * g

    p, g = torch.arange(10.0), torch.ones(10)
    update = BlockedUpdate(call, ["p", "rate", "g"], ["p", "g"], [("p", 1)])
    update(torch.tensor(True), p, torch.tensor(2.0), g)
    assert seen == [4, 4, 2]
    torch.testing.assert_close(p, torch.arange(10.0) - 2)
    update(torch.tensor(False), p, torch.tensor(2.0), g)
    assert seen == [4, 4, 2]


def test_slots_of_fewer_bits_stay_whole() -> None:
    large = torch.zeros(blocked_updates.BLOCK + 1)
    assert has_blocks([large, large])
    assert not has_blocks([large, large.bfloat16()])
    assert not has_blocks([large[1:], large[1:]])
