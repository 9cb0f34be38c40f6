"""Each block matches its docstring, on stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onward.training import onnxblock
from onward.training.onnxblock import blocks
from tests.training.nets import float_info, model_of, names, opened

RNG = np.random.default_rng(0)
A = RNG.normal(size=(2, 3)).astype(np.float32)
B = RNG.normal(size=(2, 3)).astype(np.float32)
POSITIVE = np.abs(A) + 0.1


def empty_model(**inputs: Any) -> onnx.ModelProto:
    """A model that only has inputs."""
    infos = [
        float_info(name, list(x.shape), helper.np_dtype_to_tensor_dtype(x.dtype))
        for name, x in inputs.items()
    ]
    model = model_of([], infos, [], {})
    return model


class Whole(onnxblock.ForwardBlock):
    """One block as a model."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def build(self, *input_names: str) -> Any:
        return self.block(*input_names)


def run(block: Any, **inputs: Any) -> Any:
    whole = Whole(block)
    with onnxblock.base(empty_model(**inputs)):
        whole(*inputs)
    model = whole.to_model_proto()
    onnx.checker.check_model(model, full_check=True)
    return opened(model).run(None, inputs)[0]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (blocks.Add(), A + B),
        (blocks.Sub(), A - B),
        (blocks.Mul(), A * B),
        (blocks.Div(), A / B),
        (blocks.ReduceAllL2(), [np.sqrt((A**2).sum() + (B**2).sum())]),
    ],
)
def test_blocks_of_two_inputs(block: Any, expected: Any) -> None:
    result = run(block, a=A, b=B)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert result.shape == np.shape(expected)


@pytest.mark.parametrize(
    ("block", "x", "expected"),
    [
        (blocks.Pow(2.0), A, A**2),
        (blocks.Pow(3), A, A**3),
        (blocks.ReduceMean(), A, A.mean(keepdims=True)),
        (blocks.ReduceMean(keepdims=False), A, A.mean()),
        (blocks.ReduceSum(), A, A.sum(keepdims=True)),
        (blocks.ReduceSum(keepdims=False), A, A.sum()),
        (blocks.Sigmoid(), A, 1 / (1 + np.exp(-A))),
        (blocks.Log(), POSITIVE, np.log(POSITIVE)),
        (blocks.Neg(), A, -A),
        (blocks.Abs(), A, np.abs(A)),
        (blocks.Clip(-0.1, 0.2), A, np.clip(A, -0.1, 0.2)),
        (blocks.Clip(clip_max=0.2), A, np.minimum(A, np.float32(0.2))),
        (blocks.Clip(clip_min=0.0), A, np.maximum(A, 0)),
        (blocks.Clip(), A, A),
        (blocks.Cast(TensorProto.INT64), A * 9, (A * 9).astype(np.int64)),
        (blocks.ReduceAllL2(), A, [np.linalg.norm(A)]),
    ],
)
def test_blocks_of_one_input(block: Any, x: Any, expected: Any) -> None:
    result = run(block, x=x)
    np.testing.assert_allclose(result, expected, rtol=2e-5)
    assert result.shape == np.shape(expected)


def test_a_constant_is_a_float_of_shape_one() -> None:
    class Scaled(onnxblock.Block):
        def build(self, name: str) -> str:
            return str(blocks.Mul()(name, blocks.Constant(2.5)()))

    np.testing.assert_allclose(run(Scaled(), x=A), A * np.float32(2.5))


def test_a_sequence_holds_its_tensors() -> None:
    result = run(blocks.SequenceConstruct(), a=A, b=B)
    assert [each.tolist() for each in result] == [A.tolist(), B.tolist()]


def test_labels_are_encoded_and_the_others_get_the_default() -> None:
    block = blocks.LabelEncoder(default_int64=9, keys_int64s=[4, 5], values_int64s=[0, 1])
    assert run(block, x=np.array([5, 4, 6])).tolist() == [1, 0, 9]


def test_linear_adds_weights_that_can_be_trained_by_name() -> None:
    linear = blocks.Linear(3, 2, alpha=2.0, beta=3.0)
    whole = Whole(linear)
    with onnxblock.base(empty_model(x=A)):
        whole("x")
    model = whole.to_model_proto()
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert linear.weight_name is not None and linear.bias_name is not None
    w, b = weights[linear.weight_name], weights[linear.bias_name]
    assert np.abs(w).max() <= 3**-0.5 and np.abs(b).max() <= 3**-0.5
    (result,) = opened(model).run(None, {"x": A})
    np.testing.assert_allclose(result, 2 * A @ w + 3 * b, rtol=1e-5)
    assert run(blocks.Linear(3, 2, bias=False), x=A).shape == (2, 2)


def test_pass_through_adds_no_nodes() -> None:
    with onnxblock.base(empty_model(a=A, b=B)) as handle:
        assert blocks.PassThrough()("a", "b") == ("a", "b")
    assert not handle.model.graph.node


@pytest.mark.parametrize("like", ["x", "y", "between"])
def test_an_input_like_any_value_of_the_model(like: str) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["between"]),
        helper.make_node("Abs", ["between"], ["y"]),
    ]
    model = model_of(nodes, [float_info("x", ["n", 3])], [float_info("y", ["n", 3])], {})
    with onnxblock.base(model) as handle:
        assert blocks.InputLike(like)("z") == "z"
        unnamed = blocks.InputLike(like)()
    assert names(handle.model.graph.input) == ["x", "z", unnamed]
    kinds = [value.type for value in handle.model.graph.input]
    assert kinds[0] == kinds[1] == kinds[2]


def test_input_like_an_unknown_value_is_a_lookup_error() -> None:
    law = "Could not find input or output with name y"
    with onnxblock.base(empty_model(x=A)), pytest.raises(LookupError, match=law):
        blocks.InputLike("y")("z")


def test_a_block_without_build_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        onnxblock.Block()


def test_block_may_change_the_model_proto() -> None:
    class Twice(onnxblock.Block):
        def __init__(self) -> None:  # and does not call Block's
            self.calls = 0

        def build(self, name: str) -> str:
            assert isinstance(self.base, onnx.ModelProto)
            self.base.graph.node.append(helper.make_node("Add", [name, name], ["twice"]))
            return "twice"

    np.testing.assert_allclose(run(Twice(), x=A), 2 * A)


def test_block_with_an_invalid_model_is_refused() -> None:
    class Broken(onnxblock.Block):
        def build(self, name: str) -> str:
            self.base.graph.node.append(helper.make_node("Neg", ["nowhere"], ["y"]))
            return "y"

    refused = pytest.raises(onnx.checker.ValidationError, match="nowhere")
    with onnxblock.base(empty_model(x=A)), refused:
        Broken()("x")


def test_a_block_needs_an_open_model() -> None:
    law = r"The onnx model was not set.*\nCall it inside `with onnxblock.base\(model\):`"
    with pytest.raises(RuntimeError, match=law):
        blocks.Neg()("x")
