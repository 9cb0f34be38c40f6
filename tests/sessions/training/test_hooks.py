"""Gradient hooks: what happens between backward and update; buffers and views of the store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError
from onward.losses import CrossEntropy
from onward.optimizers import SGD, AdamW, Group
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp


def session(**options: Any) -> TrainingSession:
    return TrainingSession(mlp(), CrossEntropy(), AdamW(lr=0.02), options)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"accumulate": 2}], ids=str)
def test_a_hook_that_changes_nothing_changes_nothing(options: dict[str, Any]) -> None:
    one, two = session(**options), session(**options)
    two.add_gradient_hook(lambda buffers: None)
    for feeds in batches(6):
        one.step(feeds)
        two.step(feeds)
    assert one.steps == two.steps
    for name, tensor in one.parameters.items():
        np.testing.assert_allclose(two.parameters[name], tensor, atol=1e-6)


def test_a_hook_sees_the_gradients_and_may_change_them() -> None:
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=1.0))
    seen: list[float] = []

    def halve(buffers: list[Any]) -> None:
        seen.append(sum(float(np.square(buffer).sum()) for buffer in buffers) ** 0.5)
        for buffer in buffers:
            buffer /= 2

    other = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.5))
    one.add_gradient_hook(halve)
    feeds = batches(1)[0]
    one.step(feeds)
    other.step(feeds)
    for name, tensor in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], tensor, atol=1e-6)
    assert seen == pytest.approx([other.gradient_norm], rel=1e-5)
    assert one.gradient_norm == pytest.approx(other.gradient_norm / 2, rel=1e-5)


def test_gradients_that_a_hook_spoils_are_not_used() -> None:
    one = session(clip_norm=1.0)

    def spoil(buffers: list[Any]) -> None:
        buffers[0][0] = np.nan

    remove = one.add_gradient_hook(spoil)
    before = {name: np.array(tensor) for name, tensor in one.parameters.items()}
    feeds = batches(1)[0]
    one.step(feeds)
    assert (one.steps, one.skipped_steps) == (0, 1)
    for name, tensor in one.parameters.items():
        np.testing.assert_array_equal(tensor, before[name])
    remove()
    one.step(feeds)
    assert one.steps == 1


def test_there_is_a_buffer_for_each_update_graph() -> None:
    one = session(groups=[Group(parameters="b*", lr=0.5)])
    one.run_forward(batches(1)[0])
    one.run_backward()
    buffers = one.gradient_buffers()
    total = sum(float(np.square(buffer, dtype=np.float64).sum()) for buffer in buffers)
    gradients = one.get_gradients().values()
    assert len(buffers) == 2
    assert total == pytest.approx(sum(float(np.square(g).sum()) for g in gradients), rel=1e-5)


def test_parameters_can_be_read_and_not_written() -> None:
    one = session()
    view = one.parameters
    with pytest.raises(ValueError, match="read-only"):
        view["w1"][...] = 0
    with pytest.raises(TypeError):
        view["w1"] = np.zeros(1)  # type: ignore[index]
    one.set_parameters({"w1": np.zeros((8, 16))})
    assert not view["w1"].any()  # it looks at the session, not at what was once there
    assert list(view) == ["w1", "b1", "w2", "b2"] and "w1" in repr(view)


def test_the_norm_of_gathered_gradients_is_that_of_their_mean() -> None:
    whole, parts = session(), session()
    feeds = batches(1)[0]
    whole.step(feeds)
    for _ in range(3):  # more micro-batches than the program knows of
        parts.run_forward(feeds)
        parts.run_backward()
    parts.update_weights()
    assert parts.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-5)


@pytest.mark.parametrize("providers", [None, ["TorchExecutionProvider"]], ids=["ort", "torch"])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1, "loss_scale": 64.0}], ids=str)
def test_gradients_of_another_session_update_alike(
    options: dict[str, Any], providers: list[str] | None
) -> None:
    one, two = session(**options), session(**options)
    other = TrainingSession(mlp(), CrossEntropy(), AdamW(lr=0.02), options, providers=providers)
    for feeds in batches(3):
        two.set_parameters(one.parameters)
        two.run_forward(feeds)
        two.run_backward()
        other.set_gradients(two.get_gradients())
        two.clear_gradients()
        assert other.update_weights()
        one.step(feeds)
    assert other.steps == 3
    for name, tensor in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], tensor, atol=1e-6)


def test_given_gradients_are_checked() -> None:
    one = session()
    before = {name: np.array(tensor) for name, tensor in one.parameters.items()}
    with pytest.raises(OptionError, match="there is no parameter 'w9'"):
        one.set_gradients({"w9": np.zeros(3, np.float32)})
    with pytest.raises(OptionError, match=r"parameter 'b1' has shape \(16,\), not \(3,\)"):
        one.set_gradients({"b1": np.zeros(3, np.float32)})
    one.set_gradients({"b1": np.full(16, np.nan, np.float32)})
    assert not one.update_weights() and one.skipped_steps == 1
    for name, tensor in one.parameters.items():
        np.testing.assert_array_equal(tensor, before[name])


def test_draws_of_another_position() -> None:
    model = mlp(dropout=0.5)
    one, two = (TrainingSession(model, CrossEntropy(), SGD(lr=0.0)) for _ in range(2))
    feeds = batches(1)[0]
    losses = [float(one.step(feeds)["loss"]) for _ in range(3)]
    assert len(set(losses)) == 3
    again = []
    for step in (2, 0, 1):
        two.draw_as(step, 0)
        again.append(float(two.run_forward(feeds)["loss"]))
    assert again == pytest.approx([losses[2], losses[0], losses[1]], rel=1e-6)
    assert float(two.run_forward(feeds)["loss"]) == pytest.approx(losses[0])  # its own position
