"""Module and Optimizer with empty batches: no loss, no gradients, no update."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from onward.errors import FeedError
from onward.training.api import CheckpointState
from onward.training.artifacts import LossType
from tests.training.api.made import Folder, batch, make, normalized

EMPTY = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)


def data(state: CheckpointState) -> dict[str, Any]:
    return {name: parameter.data for name, parameter in state.parameters}


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_step_after_only_empty_batches_is_skipped(partly: Folder, caplog: Any) -> None:
    state, module, optimizer = partly.open()
    module(*batch())
    optimizer.step()
    module.lazy_reset_grad()
    before = data(state)
    loss, output = module(*EMPTY)
    assert isinstance(loss, np.ndarray) and np.isnan(loss) and loss.shape == ()
    assert output.shape == (0, 3) and output.dtype == np.float32
    with caplog.at_level(logging.WARNING, "onward"):
        optimizer.step()
    assert caplog.messages == ["step 1: the batch is empty, it is left out"]
    assert optimizer._stored.step == 1 and optimizer.skipped_steps == 0
    same(data(state), before)
    module.lazy_reset_grad()
    module(*batch(seed=1))
    optimizer.step()
    assert optimizer._stored.step == 2


def test_an_empty_batch_adds_nothing_to_gradients(whole: Folder) -> None:
    (one, module, optimizer), (other, without, plain) = whole.open(), whole.open()
    for seed in range(4):
        for part in (0, 1):
            module(*EMPTY)
            assert module(*batch(seed=2 * seed + part)) == without(*batch(seed=2 * seed + part))
            module(*EMPTY)
        for each in (optimizer, plain):
            each.step()
        for each in (module, without):
            each.lazy_reset_grad()
    same(data(one), data(other))
    assert optimizer._stored.step == 4


def test_an_empty_batch_has_no_loss_in_evaluation(partly: Folder) -> None:
    _, module, _ = partly.open()
    loss, output = module.eval()(*EMPTY)
    assert np.isnan(loss) and output.shape == (0, 3)


def test_empty_batch_of_ortvalues_gives_ortvalues(partly: Folder) -> None:
    _, module, _ = partly.open()
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in EMPTY]
    loss, output = module(*values)
    assert isinstance(loss, onnxruntime.OrtValue) and np.isnan(loss.numpy())
    assert output.shape() == [0, 3]


def test_empty_batch_keeps_running_statistics(tmp_path: Path) -> None:
    folder = make(tmp_path, normalized(), loss=LossType.MSELoss)
    state, module, optimizer = folder.open()
    before = data(state)
    empty = np.zeros((0, 2, 3), np.float32)
    assert np.isnan(module(empty, empty))
    optimizer.step()
    same(data(state), before)


def test_gradients_of_empty_inputs_are_empty(tmp_path: Path) -> None:
    folder = make(tmp_path, requires_grad=["input", "fc2.weight"])
    _, module, _ = folder.open()
    module(*EMPTY)
    assert module.input_gradients["input"].shape == (0, 4)


@pytest.mark.parametrize(
    ("x", "labels", "words"),
    [
        (
            np.zeros((0, 5), np.float32),
            EMPTY[1],
            r"shape \(batch, 4\), but was given \(0, 5\)",
        ),
        (np.zeros((0, 4)), EMPTY[1], r"takes tensor\(float\), but was given tensor\(double\)"),
        (EMPTY[0], np.zeros(3, np.int64), "is 0 in input 'input' but 3 in 'labels'"),
    ],
)
def test_a_wrong_batch_without_samples_is_refused(
    whole: Folder, x: Any, labels: Any, words: str
) -> None:
    _, module, _ = whole.open()
    for mode in (module.train(), module.eval()):
        with pytest.raises(FeedError, match=words):
            mode(x, labels)
