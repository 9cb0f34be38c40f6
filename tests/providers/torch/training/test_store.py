"""TorchStore: named tensors of a training run on a torch device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward import losses, optimizers
from onward.optimizers.ema import EMA
from onward.programs.build import build_program
from onward.programs.program import Layout
from onward.providers.torch.training.store import TorchStore
from tests.sessions.training.small import mlp, weights

CPU = torch.device("cpu")


def layout(optimizer: Any = None, **options: Any) -> Layout:
    chosen = optimizer or optimizers.AdamW()
    return build_program(mlp(), losses.CrossEntropy(), chosen, options).layout


def test_parameters_are_views_of_one_vector() -> None:
    store = TorchStore(layout(), CPU)
    [tensors] = store.updates
    assert tensors.parameters.shape == (tensors.places.size,)
    for name, array in weights().items():
        np.testing.assert_array_equal(store.read(name), array)
        start = store.parameters[name].data_ptr() - tensors.parameters.data_ptr()
        assert start % 64 == 0
    tensors.parameters.zero_()
    assert not store.read("w1").any()


def test_read_tensor_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        TorchStore(layout(), CPU).read("w1")[0] = 1.0


def test_every_tensor_of_a_checkpoint_is_written_and_read() -> None:
    found = layout(average=EMA(decay=0.9))
    store = TorchStore(found, CPU)
    np.testing.assert_array_equal(store.read("optimizer/average/w1"), weights()["w1"])
    for name, (dtype, shape) in found.tensors().items():
        array = np.random.default_rng(0).normal(size=shape).astype(dtype)
        store.write(name, array)
        np.testing.assert_array_equal(store.read(name), array)
    with pytest.raises(TypeError, match="same_kind"):
        store.write("w1", np.zeros((8, 16), np.complex64))


def test_gradients_start_as_zeros() -> None:
    store = TorchStore(layout(), CPU)
    assert not store.read("gradients/w1").any()
    store.write("gradients/w1", np.ones((8, 16)))
    [vector] = store.gradient_buffers()
    assert vector.sum() == 128
    store.clear_gradients()
    assert not vector.any()


def test_slots_of_updates_by_name_have_their_own_shapes_and_first_values() -> None:
    found = layout(optimizers.Adafactor())
    store = TorchStore(found, CPU)
    shapes = {name: store.read(name).shape for name in found.tensors()}
    assert shapes == {name: shape for name, (_, shape) in found.tensors().items()}
    [update] = found.updates
    assert not update.flat


def test_layout_keeps_the_initial_values() -> None:
    found = layout()
    store = TorchStore(found, CPU)
    for tensors in store.updates:
        tensors.parameters.fill_(7.0)
    np.testing.assert_array_equal(found.initial["w1"], weights()["w1"])
