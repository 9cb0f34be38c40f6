"""Nested data: tensors and a schema, and back; types and ranges by their names."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from onward.errors import OnwardError
from onward.pytorch import profiler_ranges, type_names
from onward.pytorch.nested_data import (
    TensorStub,
    extract_data_and_schema,
    map_leaves,
    map_tensors,
    unflatten_data_using_schema,
)

Pair = namedtuple("Pair", ["first", "second"])
X, Y = torch.tensor([1.0, 2.0]), torch.tensor([[3]])


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any = None


CASES: list[tuple[Any, list[str]]] = [  # data, the names of its tensors in order
    (X, [""]),
    ([X, None, [Y]], ["0", "2_0"]),
    ((X, (Y,)), ["0", "1_0"]),
    ({"b": X, "a": Y, "c": None}, ["a", "b"]),
    ({"a": [X, {"c": Y}]}, ["a_0", "a_1_c"]),
    (OrderedDict(z=X, y=Y), ["y", "z"]),
    (Pair(X, Y), ["0", "1"]),
    (Point(X, Point(Y)), ["x", "y_x"]),
    ({2: X, 10: Y, "k": None}, ["10", "2"]),  # keys of different types
    (MappingProxyType({"a": X}), ["a"]),
    (None, []),
]


@pytest.mark.parametrize(("data", "names"), CASES, ids=lambda case: type(case).__name__)
def test_data_come_back_from_their_schema(data: Any, names: list[str]) -> None:
    tensors, schema = extract_data_and_schema(data)
    stubs: list[Any] = []
    map_stubs(schema, stubs)
    assert [stub.name for stub in sorted(stubs, key=lambda stub: stub.tensor_idx)] == names
    assert all(a is b for a, b in zip(tensors, extract_data_and_schema(data)[0], strict=True))
    restored = unflatten_data_using_schema(tensors, schema)
    assert type(restored) is type(data)
    again = extract_data_and_schema(restored)
    assert str(again[1]) == str(schema)
    assert all(a is b for a, b in zip(again[0], tensors, strict=True))


def map_stubs(schema: Any, found: list[Any]) -> None:
    map_leaves(lambda leaf, _: found.append(leaf) if isinstance(leaf, TensorStub) else None, schema)


def test_constants_stay_or_become_tensors() -> None:
    data = [True, 1, 2.0, "abc", np.ones(1), X]
    with pytest.warns(UserWarning, match="may be taken for a constant"):
        tensors, schema = extract_data_and_schema(data)
    assert len(tensors) == 1 and schema[:4] == data[:4]
    with pytest.warns(UserWarning, match="may be taken for a constant"):
        tensors, schema = extract_data_and_schema(data, constant_as_tensor=True)
    assert [t.tolist() for t in tensors] == [True, 1, 2.0, [1.0, 2.0]]
    assert schema[0].dtype == "<class 'bool'>_True" and schema[1].dtype == "<class 'int'>"
    assert schema[3] == "abc"


def test_stubs_say_what_their_tensors_are() -> None:
    _, schema = extract_data_and_schema({"g": Y})
    assert schema["g"] == TensorStub(0, name="g", dtype="torch.int64", shape_dims=2)
    assert str(schema["g"]) == "_TensorStub(tensor_idx=0,name=g,dtype=torch.int64,shape_dims=2)"


@pytest.mark.parametrize("data", [{"a": [object()]}, {"a": {1, 2}}], ids=["object", "set"])
def test_other_types_are_refused(data: Any) -> None:
    with pytest.raises(TypeError, match=r"Unsupported flatten data type: .* \(at a"):
        extract_data_and_schema(data)


def test_schemas_take_tensors_only() -> None:
    with pytest.raises(TypeError, match="Unsupported unflatten data type: <class 'int'>"):
        unflatten_data_using_schema([1], [TensorStub(0)])  # type: ignore[list-item]


def test_tensors_are_mapped_with_their_indices() -> None:
    doubled = map_tensors(lambda i, x: x * (i + 2), {"a": X, "b": [Y, "s", object]})
    assert doubled["a"].tolist() == [2.0, 4.0] and doubled["b"][0].tolist() == [[9]]
    assert doubled["b"][1:] == ["s", object]


@pytest.mark.parametrize("name", ["Byte", "Half", "BFloat16", "Float", "Long", "Bool"])
def test_types_have_three_names(name: str) -> None:
    dtype = type_names.pytorch_scalar_type_to_pytorch_dtype(name)
    onnx = type_names.pytorch_type_to_onnx_dtype(dtype)
    assert onnx == type_names.pytorch_type_to_onnx_dtype(name)
    assert type_names.onnx_dtype_to_pytorch_dtype(onnx) == dtype


@pytest.mark.parametrize(
    ("call", "law"),
    [
        (lambda: type_names.pytorch_type_to_onnx_dtype("Flaot"), "did you mean 'Float'"),
        (lambda: type_names.pytorch_type_to_onnx_dtype(torch.qint8), "no ONNX type"),
        (lambda: type_names.onnx_dtype_to_pytorch_dtype(8), "no torch type"),
    ],
)
def test_unknown_types_are_refused(call: Any, law: str) -> None:
    with pytest.raises(RuntimeError, match=f"Unsupported dtype .*\n.*{law}") as caught:
        call()
    assert isinstance(caught.value, OnwardError)


def test_ranges_and_memory_need_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert profiler_ranges.torch_nvtx_range_push("step") is None
    assert profiler_ranges.torch_nvtx_range_pop() is None
    profiler_ranges.log_memory_usage("step")


def test_the_memory_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 3 << 20)
    for name in ("memory_reserved", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 5 << 20)
    with caplog.at_level("INFO", "onward"):
        module = torch.nn.Linear(512, 1024, bias=False)
        profiler_ranges.log_memory_usage("forward", step_info="step 1", module=module)
    assert "step 1 memory (forward) allocated: 3 MiB" in caplog.text
    assert "parameters: 2 MiB | gradients: 0 MiB" in caplog.text


def test_ranges_close_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(profiler_ranges, "torch_nvtx_range_push", events.append)
    monkeypatch.setattr(profiler_ranges, "torch_nvtx_range_pop", lambda: events.append("end"))

    @profiler_ranges.nvtx_function_decorator
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [event.rpartition(".")[2] for event in events] == ["fail", "end"]
