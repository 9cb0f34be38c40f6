"""signature: ONNX Runtime's types and shapes in the protocol's words."""

from __future__ import annotations

import numpy as np
import pytest

from onward.errors import TypeUnsupported
from onward.graph.signature import NodeArg
from onward.serving.models.signature import class_scores, output_spec, spec_of
from onward.serving.requests import TensorSpec


@pytest.mark.parametrize(
    ("kind", "datatype"),
    [("float", "FP32"), ("double", "FP64"), ("float16", "FP16"), ("bfloat16", "BF16"),
     ("int64", "INT64"), ("uint8", "UINT8"), ("bool", "BOOL"), ("string", "BYTES")],
)  # fmt: skip
def test_types_have_the_names_of_the_protocol(kind: str, datatype: str) -> None:
    assert spec_of(NodeArg("x", f"tensor({kind})", [2])) == TensorSpec("x", datatype, (2,), ("",))


def test_dynamic_sizes_are_minus_one_and_keep_their_names() -> None:
    found = spec_of(NodeArg("x", "tensor(float)", ["batch", None, 3]))
    assert found.shape == (-1, -1, 3)
    assert found.axes == ("batch", "", "")
    assert not found.is_optional


def test_an_optional_input_is_marked() -> None:
    assert spec_of(NodeArg("x", "optional(tensor(float))", [1])).is_optional


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("seq(tensor(float))", "serve a model whose"),
        ("tensor(complex64)", "add a Cast"),
        ("map(string,tensor(float))", "export the model without the step that takes"),
    ],
)
def test_a_type_without_datatype_is_refused(kind: str, advice: str) -> None:
    with pytest.raises(TypeUnsupported, match=rf"'x' is .* no datatype\n{advice}"):
        spec_of(NodeArg("x", kind, []))


@pytest.mark.parametrize("key", ["string", "int64"])
def test_maps_of_classes_are_served_as_scores(key: str) -> None:
    found = output_spec(NodeArg("p", f"seq(map({key},tensor(float)))", []))
    assert found == TensorSpec("p", "FP32", (-1, -1), ("", ""))


def test_scores_are_in_the_order_of_the_sorted_classes() -> None:
    scores = class_scores([{"b": 1.0, "a": 2.0}, {"a": 4.0, "b": 3.0}])
    assert scores.dtype == np.float32
    assert scores.tolist() == [[2, 1], [4, 3]]
    assert class_scores([]).shape == (0, 0)
