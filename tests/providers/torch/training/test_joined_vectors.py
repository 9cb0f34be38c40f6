"""Tensors are joined in a vector in their own order, whatever their layout in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onward.programs.vector_offsets import place
from onward.providers.torch.training.joined_vectors import join_expression

SHAPES = {"image": (3, 2, 2, 2), "empty": (0, 4), "bias": (5,), "scalar": ()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("copies", [False, True])
def test_a_vector_has_every_tensor_at_its_place(copies: bool, dtype: torch.dtype) -> None:
    places = place(SHAPES, np.dtype("float32"))
    tensors = {name: torch.rand(shape) + 1 for name, shape in SHAPES.items()}
    tensors["image"] = tensors["image"].contiguous(memory_format=torch.channels_last)
    text = join_expression(places, {name: name for name in SHAPES}, dtype, copies=copies)
    vector = eval(text, {"torch": torch, "pad": torch.nn.functional.pad, **tensors})
    assert vector.dtype == dtype and vector.shape == (places.size,)
    for name, where in places.slices.items():
        assert torch.equal(vector[where].view(SHAPES[name]), tensors[name].to(dtype))
    assert all(not vector[gap].any() for gap in places.gaps())


def test_a_vector_of_one_tensor_is_a_copy_of_it() -> None:
    x = torch.ones(16)
    vector = torch.ops.onward.join([x], [16, 0], torch.float32)
    assert torch.equal(vector, x) and vector.data_ptr() != x.data_ptr()
