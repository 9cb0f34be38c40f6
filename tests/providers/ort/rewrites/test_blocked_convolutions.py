"""Convolutions in onnxruntime's blocked layout: the same results, where the layout fits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.gradients.model import gradient
from onward.providers.ort.processor_probe import processor_probe
from onward.providers.ort.processors import AVX512, find_processor
from onward.providers.ort.rewrites.blocked_convolutions import NCHWC
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime
from tests.passes.one_graph import built, feeds_for
from tests.passes.running import assert_same, run_ort

needs_avx512 = pytest.mark.skipif(
    find_processor(processor_probe()) != AVX512, reason="onnxruntime's blocks need AVX-512 here"
)

Sizes = tuple[Any, int, int, int, int]  # batch, channels, outputs, image, kernel


def training(sizes: Sizes, bias: bool = False, **geometry: Any) -> ir.Model:
    """The gradient model of a convolution, with respect to image and weights."""
    batch, channels, outputs, image, kernel = sizes
    group = geometry.get("group", 1)
    shapes: list[Any] = [
        (batch, channels, image, image),
        (outputs, channels // group, kernel, kernel),
    ]
    if bias:
        shapes.append((outputs,))
    model = built(lambda op, *xs: op.Conv(*xs, **geometry), *shapes)
    names = [str(value.name) for value in model.graph.inputs]
    return gradient(model, {"y0": "dy"}, names)


def blocked_operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.domain == NCHWC)


FITTING: dict[str, tuple[Sizes, dict[str, Any]]] = {
    "three channels": ((2, 3, 32, 16, 3), {"pads": [1] * 4}),
    "stride 1": ((2, 16, 48, 9, 3), {"pads": [1] * 4}),
    "without padding": ((2, 32, 16, 12, 5), {}),
    "padded on one side": ((2, 16, 16, 12, 3), {"pads": [2, 0, 1, 1]}),
    "stride 2": ((2, 32, 16, 16, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "stride 2, even kernel": ((2, 16, 16, 20, 4), {"pads": [1] * 4, "strides": [2, 2]}),
    "stride 3 and 2": ((2, 16, 16, 36, 3), {"pads": [1] * 4, "strides": [3, 2]}),
    "kernel of 7": ((2, 16, 16, 18, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "dilated": ((2, 16, 16, 16, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "any batch": (("n", 16, 32, 16, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "any batch, stride 1": (("n", 16, 32, 9, 3), {"pads": [1] * 4}),
    "kernel of 1": ((2, 16, 24, 20, 1), {}),
    "channels that fill no block": ((2, 24, 20, 17, 3), {"pads": [1] * 4}),
}


@needs_avx512
@pytest.mark.parametrize("name", list(FITTING))
@pytest.mark.parametrize("bias", [False, True])
def test_results_stay(name: str, bias: bool) -> None:
    sizes, geometry = FITTING[name]
    model = training(sizes, bias, **geometry)
    feeds = {k: np.rint(array) for k, array in feeds_for(model).items()}  # sums are exact
    wanted = run_ort(model, feeds)
    assert_same(wanted, run_ort(fuse_for_onnxruntime(model, AVX512), feeds), 0)


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [("three channels", 1), ("stride 1", 2), ("stride 2", 5), ("any batch", 5), ("dilated", 1)],
)
def test_convolution_and_gradient_are_blocked(name: str, convolutions: int) -> None:
    sizes, geometry = FITTING[name]
    model = fuse_for_onnxruntime(training(sizes, **geometry), AVX512)
    assert blocked_operators(model)["Conv"] == convolutions
    assert model.opset_imports[NCHWC] == 1


@pytest.mark.parametrize("name", ["stride 1", "stride 2"])
def test_weights_are_reordered_as_images(name: str) -> None:
    """onnxruntime merges two Transposes into one that moves single elements."""
    sizes, geometry = FITTING[name]
    model = fuse_for_onnxruntime(training(sizes, **geometry), AVX512)
    weights = model.graph.inputs[1]
    shaped = [node.outputs[0] for node in weights.consumers() if node.op_type == "Reshape"]
    assert {node.op_type for value in shaped for node in value.consumers()} == {"ReorderInput"}


@pytest.mark.parametrize(
    ("sizes", "geometry"),
    [
        ((2, 16, 16, 8, 3), {}),  # 36 windows
        ((2, 16, 16, 16, 3), {"group": 2}),
        ((2, 24, 24, 16, 3), {}),
        ((2, 16, 16, 16, 1), {}),
        ((2, 16, 16, "size", 3), {}),
    ],
)
def test_other_convolutions_stay(sizes: Sizes, geometry: dict[str, Any]) -> None:
    model = fuse_for_onnxruntime(training(sizes, **geometry), AVX512)
    assert not blocked_operators(model) and NCHWC not in model.opset_imports


def test_the_portable_form_has_no_blocks() -> None:
    model = fuse_for_onnxruntime(training((2, 16, 16, 16, 3)))
    assert not blocked_operators(model)


def test_a_gradient_of_stride_1_is_a_plain_convolution_without_blocks() -> None:
    model = fuse_for_onnxruntime(training((2, 24, 24, 20, 3), pads=[1] * 4), AVX512)
    assert "ConvTranspose" not in {node.op_type for node in model.graph}


def test_the_gradient_of_an_image_with_few_channels_stays() -> None:
    model = fuse_for_onnxruntime(training((2, 3, 32, 20, 3), pads=[1] * 4), AVX512)
    assert "ConvTranspose" in {node.op_type for node in model.graph}
