"""Two models on the same feeds: outputs, and the first value that they disagree on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import version_converter

from onward.errors import FeedError, OptionError
from onward.measure.comparison import compare_models, feeds_for_other
from onward.measure.tensor_difference import Tolerance

X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}


def net(
    change: Callable[[str], str] = lambda text: text, head: str = "float[n,4] x", opset: int = 13
) -> onnx.ModelProto:
    text = f"""
        <ir_version: 7, opset_import: ["" : {opset}]>
        g ({head}) => (float[n,4] y)
        <float[4,4] w = {{1,0,0,1, 0,1,0,0, 0,0,1,0, 0,0,0,1}}, float[4] b = {{1,2,3,4}}>
        {{ h = MatMul(x, w)  k = Add(h, b)  r = Relu(k)  y = Sub(r, x) }}"""
    return onnx.parser.parse_model(change(text))


def test_equal_models_agree() -> None:
    comparison = compare_models(net(), net(), X)
    assert comparison.same and comparison.first is None and not comparison.notes


def test_the_first_difference_is_named_with_its_node() -> None:
    other = net(lambda text: text.replace("b = {1,2,3,4}", "b = {1,2,3,5}"))
    comparison = compare_models(net(), other, X)
    assert not comparison.same and comparison.first is not None
    assert (comparison.first.name, comparison.agreed) == ("k", 1)
    assert comparison.first.difference.beyond == 2
    assert comparison.first.node.startswith("Add")


def test_the_first_difference_is_found_without_equal_names() -> None:
    def renamed(text: str) -> str:
        for name in "hkr":
            text = text.replace(f"{name} =", f"v{name} =").replace(f"({name},", f"(v{name},")
            text = text.replace(f"({name})", f"(v{name})")
        return text.replace("b = {1,2,3,4}", "b = {1,2,3,5}")

    comparison = compare_models(net(), net(renamed), X)
    assert comparison.first is not None
    assert (comparison.first.name, comparison.first.other) == ("k", "vk")


def test_every_value_can_be_compared() -> None:
    comparison = compare_models(net(), net(), X, every=True)
    assert [value.name for value in comparison.values] == ["h", "k", "r", "y"]
    assert comparison.agreed == 4 and comparison.first is None


def test_a_converted_model_agrees() -> None:
    converted = version_converter.convert_version(net(), 21)
    assert compare_models(net(), converted, X, every=True).same


def test_an_optimised_model_agrees(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fast.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    data = net().SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    comparison = compare_models(net(), tmp_path / "fast.onnx", X, every=True)
    assert comparison.same and [v.name for v in comparison.values][-1] == "y"


def test_a_quantised_model_is_compared_by_name() -> None:
    def quantise(text: str) -> str:
        text = text.replace("h = MatMul(x, w)", "q, s, z = DynamicQuantizeLinear(x)"
                            " d = DequantizeLinear(q, s, z) h = MatMul(d, w)")  # fmt: skip
        return text

    comparison = compare_models(net(), net(quantise), X, tolerance=Tolerance(1e-6, 1e-7))
    assert comparison.first is not None and comparison.first.name == "h"
    assert compare_models(net(), net(quantise), X, tolerance=Tolerance(0, 0.1)).same


def test_other_names_are_matched_by_position_with_a_note() -> None:
    def rename(text: str) -> str:
        text = text.replace("] x)", "] data)").replace("(x, w)", "(data, w)")
        return text.replace("(r, x)", "(r, data)").replace("y =", "out =").replace("] y)", "] out)")

    comparison = compare_models(net(), net(rename), X)
    assert comparison.same
    assert comparison.notes == [
        "input 'x' is compared with 'data', by its position",
        "output 'y' is compared with 'out', by its position",
    ]
    assert list(feeds_for_other(net(), net(rename), X)) == ["data"]


def test_feeds_are_cast_to_the_second_models_type() -> None:
    def halve(text: str) -> str:
        return text.replace("float[n,4] x", "float16[n,4] c").replace(
            "h = MatMul", "x = Cast<to=1>(c) h = MatMul"
        )

    comparison = compare_models(net(), net(halve), X, tolerance=Tolerance(1e-2, 1e-3))
    assert comparison.same
    assert "input 'c' of the second model is fed as float16" in comparison.notes


def test_a_shape_that_differs_is_a_reason() -> None:
    def transposed(text: str) -> str:
        return text.replace("y = Sub(r, x)", "s = Sub(r, x) y = Transpose(s)").replace(
            "=> (float[n,4] y)", "=> (float[4,n] y)"
        )

    comparison = compare_models(net(), net(transposed), X)
    assert comparison.outputs[0].difference.reason == "shape (2, 4) against (4, 2)"
    assert comparison.first is None and comparison.agreed == 4


def test_models_without_a_common_input_are_refused() -> None:
    other: Any = net(head="float[n,4] x, float[n,4] extra")
    with pytest.raises(FeedError, match="input 'extra' is in only one model: x against x, extra"):
        compare_models(net(), other, X)


def test_an_output_of_only_one_model_is_noted() -> None:
    def more(text: str) -> str:
        return text.replace("=> (float[n,4] y)", "=> (float[n,4] y, float[n,4] k)")

    comparison = compare_models(net(), net(more), X)
    assert comparison.same
    assert comparison.notes == ["output 'k' is in only one model, and not compared"]


def test_text_is_compared_too() -> None:
    def text(ending: str) -> onnx.ModelProto:
        return onnx.parser.parse_model(f"""
            <ir_version: 10, opset_import: ["" : 20]>
            g (string[1] x) => (string[1] y) <string[1] e = {{"{ending}"}}>
            {{ h = Identity(x)  y = StringConcat(h, e) }}""")

    comparison = compare_models(text("a"), text("b"), {"x": np.array(["c"], object)})
    assert comparison.first is not None and comparison.first.name == "y"
    assert comparison.first.difference.values == ("'ca'", "'cb'") and comparison.agreed == 1


def two(inputs: str, outputs: str) -> onnx.ModelProto:
    """p = a - b and q = a + b, under other names and in another order."""
    a, b, p, q = "abpq" if "a" in inputs else "uvst"
    declared = {name: f"float[n] {name}" for name in (a, b, p, q)}
    heads = [", ".join(declared[name] for name in names.split()) for names in (inputs, outputs)]
    return onnx.parser.parse_model(
        f'<ir_version: 7, opset_import: ["" : 13]> g ({heads[0]}) => ({heads[1]}) '
        f"{{ {p} = Sub({a}, {b})  {q} = Add({a}, {b}) }}"
    )


AB = {"a": np.ones(3, np.float32), "b": np.arange(3, dtype=np.float32)}
NAMES = {"a": "u", "b": "v", "p": "s", "q": "t"}


def test_names_pair_inputs_and_outputs_of_another_order() -> None:
    first, second = two("a b", "p q"), two("v u", "t s")
    assert not compare_models(first, second, AB).same  # by place
    comparison = compare_models(first, second, AB, names=NAMES)
    assert comparison.same and not comparison.notes
    assert [(c.name, c.other) for c in comparison.outputs] == [("p", "s"), ("q", "t")]
    assert list(feeds_for_other(first, second, AB, NAMES)) == ["u", "v"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a": "w"}, "no input or output 'w' to pair\nthat model has 'v', 'u', 't', 's'"),
        ({"z": "u"}, "no input or output 'z' to pair"),
        ({"a": "s"}, "'a' and 's' cannot be paired: an input and an output"),
    ],
)
def test_names_that_cannot_be_paired_are_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        compare_models(two("a b", "p q"), two("v u", "t s"), AB, names=names)


def test_several_sets_of_feeds_show_the_worst() -> None:
    other = net(lambda text: text.replace("Relu(k)", "LeakyRelu(k)"))
    above, below = {"x": np.ones((1, 4), np.float32)}, {"x": np.full((1, 4), -3, np.float32)}
    assert compare_models(net(), other, above).same
    comparison = compare_models(net(), other, [above, below, above])
    [output] = comparison.outputs
    assert comparison.samples == 3 and not comparison.same
    assert (output.difference.beyond, output.difference.elements) == (3, 12)
    assert comparison.first is not None and comparison.first.name == "r"
