"""Conversion of tensors to OrtValues."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import onward
from onward.providers.ort.ort_values import to_ort
from tests.models import sandwich


class OnDevice:
    """A tensor that says it lies on a GPU; `cpu` brings it to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("a stock onnxruntime would crash on this memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def cpu(self) -> torch.Tensor:
        return self._tensor


def test_tensor_on_a_device_is_copied_to_the_host() -> None:
    if "CUDAExecutionProvider" in onward.get_available_providers():
        pytest.skip("this onnxruntime reads what lies on a GPU")
    value = to_ort(OnDevice(torch.arange(3)))
    np.testing.assert_array_equal(value.numpy(), [0, 1, 2])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[True, False, True], [False, False, True]]),
        torch.tensor([[True, False], [False, False]]).T,
        torch.tensor(True),
        torch.zeros(0, 3, dtype=torch.bool),
    ],
    ids=["a matrix", "transposed", "a scalar", "empty"],
)
def test_torch_bools_are_accepted(tensor: torch.Tensor) -> None:
    value = to_ort(tensor)
    assert value.data_type() == "tensor(bool)"
    np.testing.assert_array_equal(value.numpy(), tensor.numpy())


def test_bools_pass_from_torch_to_onnxruntime() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "bfloat16", ("n",))  # which onnxruntime does not compare
    session = onward.InferenceSession(op.model(y=op.Not(op.Less(x, op.Neg(x)))))
    assert session.get_providers() == ["TorchExecutionProvider", "CPUExecutionProvider"]
    (y,) = session.run(None, {"x": np.array([-1, 0, 1], ml_dtypes.bfloat16)})
    assert y.tolist() == [False, True, True]


@pytest.mark.gpu
def test_model_partitioned_between_gpu_and_cpu() -> None:
    session = onward.InferenceSession(
        sandwich(), None, ["CPUExecutionProvider", "TorchExecutionProvider"]
    )
    (y,) = session.run(None, {"x": np.full((2, 4), 2, np.float32)})
    np.testing.assert_array_equal(y, np.full((2, 4), 8, np.float32))
