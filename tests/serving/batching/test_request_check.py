"""request_check: requests that do not fit are refused with Triton's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import RequestInvalid
from onward.serving.batching.batch import BatchLayout, PaddedInput
from onward.serving.batching.batching import Batching
from onward.serving.batching.request_check import CheckedRequest, RequestCheck
from onward.serving.requests import InferRequest, RequestedOutput, TensorSpec

INPUTS = [TensorSpec("x", "FP32", (-1, 2))]
OUTPUTS = [TensorSpec("y", "FP32", (-1, 2)), TensorSpec("z", "FP32", (-1,))]
BATCHING = Batching(4, BatchLayout({"x": 0, "b": 0, "y": 0, "z": 0}))


def check(
    inputs: dict[str, Any],
    specs: list[TensorSpec] = INPUTS,
    batching: Batching = BATCHING,
    outputs: tuple[str, ...] = (),
    buckets: tuple[int, ...] = (),
) -> CheckedRequest:
    requested = tuple(RequestedOutput(name) for name in outputs)
    request = InferRequest("m", inputs, outputs=requested)
    return RequestCheck("m", specs, OUTPUTS, batching, buckets)(request)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def test_a_request_that_fits_is_taken() -> None:
    array = zeros(3, 2)
    found = check({"x": array})
    assert found.feeds["x"] is array
    assert (found.rows, found.outputs) == (3, None)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"y": zeros(1, 2)}, "unexpected inference input 'y' for model 'm'"),
        (
            {"x": zeros(1, 2), "y": zeros(1)},
            "expected 1 inputs but got 2 inputs for model 'm'\nit has no input 'y'",
        ),
        ({}, "expected 1 inputs but got 0 inputs for model 'm'\nmissing: 'x'"),
        (
            {"x": zeros(1, 2, dtype=np.int32)},
            "inference input 'x' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            {"x": zeros(1, 3)},
            "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got [1,3]",
        ),
        ({"x": zeros(2)}, "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got [2]"),
        ({"x": zeros()}, "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got []"),
        ({"x": zeros(5, 2)}, "inference request batch-size must be <= 4 for 'm'"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestInvalid) as raised:
        check(inputs)
    assert str(raised.value).startswith(message)


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="unexpected inference output 'q' for model 'm'"):
        check({"x": zeros(1, 2)}, outputs=("q",))


def test_outputs_are_selected_in_the_model_s_order() -> None:
    assert check({"x": zeros(1, 2)}, outputs=("z",)).outputs == ("z",)
    assert check({"x": zeros(1, 2)}, outputs=("z", "y")).outputs is None


def test_inputs_must_have_the_same_rows() -> None:
    specs = [*INPUTS, TensorSpec("b", "FP32", (-1,))]
    with pytest.raises(RequestInvalid, match="input 'b' batch size does not match other inputs"):
        check({"x": zeros(2, 2), "b": zeros(3)}, specs)


def test_optional_inputs_may_be_missing() -> None:
    specs = [*INPUTS, TensorSpec("b", "FP32", (-1,), is_optional=True)]
    with_b = check({"x": zeros(1, 2), "b": zeros(1)}, specs)
    without_b = check({"x": zeros(1, 2)}, specs)
    assert with_b.key != without_b.key
    with pytest.raises(RequestInvalid, match="expected 1 to 2 inputs but got 0 inputs"):
        check({}, specs)
    with pytest.raises(RequestInvalid, match="input 'x' is missing for model 'm'"):
        check({"b": zeros(1)}, specs)


def test_a_request_with_another_value_of_an_initializer_runs_alone() -> None:
    bias = TensorSpec("b", "FP32", (3,), is_optional=True, has_default=True)
    specs, batching = [*INPUTS, bias], Batching(4, BatchLayout({"x": 0}))
    plain = [check({"x": zeros(1, 2)}, specs, batching).key for _ in range(2)]
    own = [check({"x": zeros(1, 2), "b": zeros(3)}, specs, batching).key for _ in range(2)]
    assert len({*plain, *own}) == 3
    with pytest.raises(RequestInvalid, match="unexpected shape for input 'b'"):
        check({"x": zeros(1, 2), "b": zeros(2)}, specs, batching)


def test_only_compatible_requests_share_a_key() -> None:
    specs = [TensorSpec("x", "FP32", (-1, -1))]
    key = check({"x": zeros(1, 2)}, specs).key
    assert check({"x": zeros(3, 2)}, specs).key == key
    assert check({"x": zeros(1, 5)}, specs).key != key
    assert check({"x": zeros(1, 2)}, specs, outputs=("y",)).key != key
    assert check({"x": zeros(1, 2)}, specs, outputs=("z", "y")).key == key


def test_padded_lengths_share_a_key_within_their_bucket() -> None:
    specs = [TensorSpec("x", "FP32", (-1, -1))]
    batching = Batching(4, BatchLayout({"x": 0}, padded={"x": PaddedInput(1)}))
    keys = [check({"x": zeros(1, n)}, specs, batching).key for n in (2, 5, 99)]
    assert len(set(keys)) == 1
    keys = [check({"x": zeros(1, n)}, specs, batching, (), (4, 8)).key for n in (2, 4, 5, 9, 99)]
    assert keys[0] == keys[1] != keys[2] != keys[3] == keys[4]


def test_a_larger_request_runs_alone_if_the_limit_was_not_asked_for() -> None:
    batching = Batching(4, BatchLayout({"x": 0}), limits_requests=False)
    assert check({"x": zeros(9, 2)}, batching=batching).rows == 9


def test_a_model_that_is_not_batched_takes_any_rows() -> None:
    specs = [*INPUTS, TensorSpec("b", "FP32", (-1,))]
    assert check({"x": zeros(9, 2), "b": zeros(5)}, specs, Batching()).rows == 1


def test_requests_without_rows_or_inputs_run_alone() -> None:
    empty = [check({"x": zeros(0, 2)}) for _ in range(2)]
    assert empty[0].rows == 0
    assert empty[0].key != empty[1].key
    specs = [TensorSpec("x", "FP32", (-1, 2), is_optional=True)]
    nothing = [check({}, specs) for _ in range(2)]
    assert nothing[0].rows == 1
    assert nothing[0].key != nothing[1].key
    assert check({}, [], Batching()).rows == 1


def test_scalars_are_taken() -> None:
    specs = [TensorSpec("x", "FP32", ())]
    assert check({"x": zeros()}, specs, Batching()).feeds["x"].shape == ()


def test_texts_are_decoded() -> None:
    specs = [TensorSpec("x", "BYTES", (-1, 1))]
    array = np.array([["ä".encode()], [b"b"]], object)
    assert check({"x": array}, specs).feeds["x"].tolist() == [["ä"], ["b"]]
    assert check({"x": np.array([["c"]])}, specs).feeds["x"].tolist() == [["c"]]
    with pytest.raises(RequestInvalid, match="input 'x': an element is not UTF-8 text"):
        check({"x": np.array([[b"\xff"]], object)}, specs)
    with pytest.raises(RequestInvalid, match="data-type is 'BYTES', but model 'm' expects 'FP32'"):
        check({"x": np.array([[b"a", b"b"]], object)})


def test_binary_bytes_are_not_decoded() -> None:
    data = np.array([b"\xff\xd8", b"a"], object)
    assert check({"b": data}, [TensorSpec("b", "BYTES", (-1,), is_binary=True)]).feeds["b"] is data
    with pytest.raises(RequestInvalid, match="not UTF-8"):
        check({"b": data}, [TensorSpec("b", "BYTES", (-1,))])
