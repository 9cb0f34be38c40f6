"""FunctionInstance: Python functions of arrays, with declared and inferred signatures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from onward.errors import NodeFailed, OptionError, RequestInvalid, SessionClosed
from onward.serving.models.function_instance import FunctionInstance
from onward.serving.models.function_signature import spec_of
from onward.serving.requests import TensorSpec

Array = np.ndarray[Any, Any]
X = np.array([[1, 2], [3, 4]], np.float32)


def double(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return 2 * x


def typed(
    x: Annotated[NDArray[np.int64], (-1, 1)], y: Annotated[Array, "FP16", (-1, 3)]
) -> tuple[Array, Array]:
    return x + 1, y.sum(-1)


def by_name(inputs: dict[str, Array]) -> dict[str, Array]:
    return {"total": inputs["a"] + inputs["b"]}


def scaled(x: np.ndarray, factor: float = 3.0) -> dict[str, Array]:  # type: ignore[type-arg]
    return {"y": (x * factor).astype(np.float32)}


def shout(text: Annotated[Array, "BYTES", (-1,)]) -> list[str]:
    return [each.upper() for each in text]


def test_a_plain_function_takes_arrays_of_any_rank() -> None:
    instance = FunctionInstance(double)
    assert instance.inputs == [TensorSpec("x", "FP32", ())]
    assert instance.outputs == [TensorSpec("output", "FP32", ())]
    for x in (X, X[0], X[0, 0], X[None]):
        np.testing.assert_array_equal(instance.run({"x": x})["output"], 2 * x)


def test_annotations_declare_types_and_shapes() -> None:
    instance = FunctionInstance(typed)
    assert [spec.datatype for spec in instance.inputs] == ["INT64", "FP16"]
    assert instance.inputs[1].shape == (-1, 3)
    assert instance.outputs == [
        TensorSpec("output_0", "INT64", (-1, 1)),
        TensorSpec("output_1", "FP16", (-1,)),
    ]


def test_dictionaries_and_defaults() -> None:
    specs = [TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "FP32", (-1, 2))]
    instance = FunctionInstance(by_name, specs)
    assert instance.outputs == [TensorSpec("total", "FP32", (-1, 2))]
    np.testing.assert_array_equal(instance.run({"a": X, "b": X}, ["total"])["total"], 2 * X)
    instance = FunctionInstance(scaled)
    assert [spec.is_optional for spec in instance.inputs] == [False, True]
    np.testing.assert_array_equal(instance.run({"x": X})["y"], 3 * X)
    found = instance.run({"x": X, "factor": np.array(2.0, np.float32)})["y"]
    np.testing.assert_array_equal(found, 2 * X)


def test_text_and_lists() -> None:
    instance = FunctionInstance(shout)
    assert instance.outputs == [TensorSpec("output", "BYTES", (-1,))]
    assert instance.run({"text": np.array(["a", "é"], object)})["output"].tolist() == ["A", "É"]


def test_lambdas_and_objects_are_functions() -> None:
    class Model:
        def __call__(self, x: NDArray[np.float64]) -> Array:
            return x.sum(1)

    assert FunctionInstance(Model()).outputs == [TensorSpec("output", "FP64", ())]
    assert FunctionInstance(lambda x: (x, x)).outputs[1].name == "output_1"


class Scaler:
    """A model with state of its own."""

    def predict(self, x: NDArray[np.int64], by: int = 2) -> Array:
        return x * by

    async def later(self, x: Array) -> Array:
        return x


class Awaited:
    async def __call__(self, x: Array) -> Array:
        return x


def weighted(weight: Array, x: NDArray[np.int64], by: int = 1) -> Array:
    return weight * x * by


def scaled_by_name(weight: float, inputs: dict[str, Array]) -> dict[str, Array]:
    return {"y": weight * inputs["x"]}


@pytest.mark.parametrize(
    ("function", "name", "inputs"),
    [
        (Scaler().predict, "predict", ["x", "by"]),
        (functools.partial(Scaler().predict, by=6), "predict", ["x"]),
        (functools.partial(Scaler.predict, Scaler(), by=6), "predict", ["x"]),
        (functools.partial(weighted, np.array([6])), "weighted", ["x", "by"]),
        (functools.partial(weighted, weight=np.array([6])), "weighted", ["x", "by"]),
        (functools.partial(functools.partial(weighted, by=2), np.array([3])), "weighted", ["x"]),
    ],
)
def test_bound_arguments_are_no_inputs(
    function: Callable[..., Any], name: str, inputs: list[str]
) -> None:
    instance = FunctionInstance(function)
    assert instance.name == name
    assert [spec.name for spec in instance.inputs] == inputs
    assert {spec.datatype for spec in instance.inputs} == {"INT64"}
    found = instance.run({"x": np.array([7])})["output"].tolist()
    assert found == [42 if "by" not in inputs or name == "weighted" else 14]


def test_a_function_of_a_dictionary_may_have_bound_arguments() -> None:
    for bound in (
        functools.partial(scaled_by_name, 2.0),
        functools.partial(scaled_by_name, weight=2.0),
    ):
        instance = FunctionInstance(bound, [TensorSpec("x", "FP32", (-1, 2))])
        np.testing.assert_array_equal(instance.run({"x": X})["y"], 2 * X)


def test_a_function_may_change_its_inputs_in_place() -> None:
    def halved(x: NDArray[np.float32]) -> Array:
        x /= 2
        return x

    received = np.frombuffer(X.tobytes(), np.float32).reshape(X.shape)  # as from a request
    found = FunctionInstance(halved).run({"x": received})["output"]
    np.testing.assert_array_equal(found, X / 2)
    np.testing.assert_array_equal(received, X)


def test_a_function_may_fill_a_buffer_of_its_own_again() -> None:
    """The answers of one batch are written while the next one runs."""
    buffer = np.empty((2, 2), np.float32)

    def doubled(x: NDArray[np.float32]) -> Array:
        return np.multiply(x, 2, out=buffer[: len(x)])

    instance = FunctionInstance(doubled)
    found = instance.run({"x": X})["output"]
    instance.run({"x": np.zeros_like(X)})
    np.testing.assert_array_equal(found, 2 * X)


def test_declared_outputs_need_no_trial() -> None:
    calls: list[Any] = []

    def record(x: NDArray[np.float32]) -> float:
        calls.append(x)
        return 0.5

    instance = FunctionInstance(record, outputs=[TensorSpec("mean", "FP32", ())])
    assert not calls
    assert instance.run({"x": X})["mean"].dtype == np.float32


def fails(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    if x.any():
        raise KeyError("broken")
    return x


def test_a_dictionary_has_the_declared_types() -> None:
    outputs = [TensorSpec("y", "FP32", (-1,))]
    instance = FunctionInstance(lambda x: {"y": x.astype(np.float64)}, outputs=outputs)
    assert instance.run({"x": np.ones(2, np.float32)})["y"].dtype == np.float32


@pytest.mark.parametrize("value", [[300], [-1.0], [np.nan], [1e30]])
def test_an_output_out_of_the_range_of_its_integer_type_is_an_error(value: list[float]) -> None:
    outputs = [TensorSpec("y", "UINT8", (-1,))]
    assert FunctionInstance(lambda x: [2.9], outputs=outputs).run({"x": X})["y"].tolist() == [2]
    instance = FunctionInstance(lambda x: value, outputs=outputs)
    with pytest.raises(NodeFailed, match="for output 'y': out of the range of UINT8"):
        instance.run({"x": X})


def test_errors_of_a_function_name_it() -> None:
    instance = FunctionInstance(fails)
    with pytest.raises(NodeFailed, match="function 'fails' failed: KeyError: 'broken'"):
        instance.run({"x": X})
    with pytest.raises(NodeFailed, match="did not return 'z'"):
        instance.run({"x": 0 * X}, ["z"])
    instance.close()
    with pytest.raises(SessionClosed, match="no longer served"):
        instance.run({"x": X})


def test_arrays_of_the_other_byte_order_are_numbers() -> None:
    instance = FunctionInstance(lambda x: x.astype(x.dtype.newbyteorder(">")))
    [result] = instance.run({"x": X}).values()
    assert result.dtype.isnative
    np.testing.assert_array_equal(result, X)


@pytest.mark.parametrize(
    ("result", "kind"),
    [(None, "NoneType"), ({"y": np.ones(2, np.complex64)}, "complex64"), (([1], {2}), "set")],
)
def test_what_is_no_tensor_is_refused(result: Any, kind: str) -> None:
    with pytest.raises(OptionError, match=f"returned {kind}: neither numbers, booleans nor text"):
        FunctionInstance(lambda x: result)


def test_lists_of_different_lengths_are_refused_with_the_functions_name() -> None:
    def ragged(x: NDArray[np.float32]) -> list[list[int]]:
        return [[1, 2], [3]]

    with pytest.raises(OptionError, match="function 'ragged' returned what is no array"):
        FunctionInstance(ragged)


def test_errors_of_serving_pass_through() -> None:
    def refuse(x: NDArray[np.float32]) -> Array:
        if x.any():
            raise RequestInvalid("x must be 0")
        return x

    with pytest.raises(RequestInvalid, match="x must be 0"):
        FunctionInstance(refuse).run({"x": X})


def many(*arrays: Array) -> Array:
    return arrays[0]


def unknown(x: set[int]) -> Any:
    return x


def picky(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return x.reshape(7, 7)


async def later(x: Array) -> Array:
    return x


def by_place(x: Array, /) -> Array:
    return x


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (many, "inputs of function 'many' are not known: .arrays has no fixed names"),
        (unknown, "parameter 'x' is not declared as an array"),
        (picky, "outputs of function 'picky' are not known: a trial call with zeros failed"),
        (later, "later is a coroutine"),
        (functools.partial(Scaler.later, Scaler()), "later is a coroutine"),
        (Awaited(), "Awaited is a coroutine"),
        (by_place, "parameter 'x' cannot be given by name"),
        (7, "7 is not a function"),
    ],
)
def test_functions_that_cannot_be_served(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        FunctionInstance(function)


def test_aliases_of_type_statements_are_read_as_what_they_stand_for() -> None:
    """As NDArray is from numpy 2.5 on, with Python 3.12."""
    scalar = TypeVar("scalar", bound=np.generic)
    array = TypeAliasType("array", np.ndarray[Any, np.dtype[scalar]], type_params=(scalar,))
    names = TypeAliasType("names", str)
    for hint in (array[np.int64], Annotated[array[np.int64], (-1, 2)]):
        spec = spec_of("x", hint)
        assert spec is not None and spec.datatype == "INT64"
    text = spec_of("y", names)
    assert text is not None and text.datatype == "BYTES"
