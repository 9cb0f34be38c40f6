"""Convolutions of small images as one product for the whole batch: the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.gradients.model import gradient
from onward.providers.ort.processors import AVX512
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime
from tests.passes.one_graph import built, feeds_for
from tests.passes.running import assert_same, run_ort

Case = tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]  # image, weights, attributes

FITTING: dict[str, Case] = {
    "stride 1": ((3, 192, 2, 2), (160, 192, 3, 3), {"pads": [1] * 4}),
    "stride 2": ((2, 128, 4, 4), (256, 128, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "odd image, stride 2": ((2, 128, 5, 3), (256, 128, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "padded on one side": ((2, 128, 3, 3), (256, 128, 3, 3), {"pads": [1, 0, 0, 1]}),
    "any batch": (("n", 192, 2, 2), (160, 192, 3, 3), {"pads": [1] * 4}),
    "one image": ((1, 192, 2, 2), (160, 192, 3, 3), {"pads": [1] * 4}),
    "kernel of 1": ((2, 512, 2, 2), (512, 512, 1, 1), {}),
}


def training(case: Case, bias: bool) -> ir.Model:
    """The gradient model of a convolution, with respect to all its inputs."""
    image, weights, attributes = case
    shapes = [image, weights, *([weights[:1]] if bias else [])]
    model = built(lambda op, *xs: op.Conv(*xs, **attributes), *shapes)
    return gradient(model, {"y0": "dy"}, [str(value.name) for value in model.graph.inputs])


def reads(model: ir.Model, kind: str) -> bool:
    """Whether an operator of this kind reads an input of the model."""
    return any(
        node.op_type == kind and any(v is not None and v.is_graph_input() for v in node.inputs)
        for node in model.graph
    )


@pytest.mark.parametrize("name", list(FITTING))
@pytest.mark.parametrize("bias", [False, True])
def test_results_stay(name: str, bias: bool) -> None:
    model = training(FITTING[name], bias)
    feeds = {k: np.rint(array) for k, array in feeds_for(model).items()}  # sums are exact
    wanted = run_ort(model, feeds)
    fused = fuse_for_onnxruntime(model, AVX512)
    assert not reads(fused, "Conv") and not reads(fused, "ConvTranspose")
    assert_same(wanted, run_ort(fused, feeds), 0)


@pytest.mark.parametrize(
    "case",
    [
        ((2, 192, 3, 3), (160, 192, 3, 3), {"pads": [1] * 4}),  # 9 windows
        ((2, 16, 2, 2), (160, 16, 3, 3), {"pads": [1] * 4}),  # small weights
        ((2, 384, 2, 2), (160, 192, 3, 3), {"pads": [1] * 4, "group": 2}),
    ],
)
def test_other_convolutions_stay(case: Case) -> None:
    fused = fuse_for_onnxruntime(training(case, bias=False), AVX512)
    assert reads(fused, "Conv") and reads(fused, "ConvTranspose")


def test_means_of_large_images_stay() -> None:
    """Their gradient is a ConvTranspose; to pick each of 530 x 530 elements would take 294 GiB."""
    model = built(lambda op, x: op.AveragePool(x, kernel_shape=[530, 530]), (2, 3, 530, 530))
    fused = fuse_for_onnxruntime(gradient(model, {"y0": "dy"}, ["x0"]), AVX512)
    assert "ConvTranspose" in [node.op_type for node in fused.graph]


def test_the_portable_form_stays() -> None:
    assert reads(fuse_for_onnxruntime(training(FITTING["stride 1"], bias=False)), "ConvTranspose")


def test_columns_are_shared_with_the_gradient_of_the_weights() -> None:
    fused = fuse_for_onnxruntime(training(FITTING["stride 1"], bias=False), AVX512)
    assert [node.op_type for node in fused.graph].count("Conv") == 1
