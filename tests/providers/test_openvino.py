"""OpenVINOExecutionProvider: its options, threads, types, and models that it shares with others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onward
from onward.errors import (
    MemoryLimitExceeded,
    NodeFailed,
    OptionError,
    ProviderError,
    UnsupportedModel,
)
from onward.providers.openvino.executable import OpenVINOExecutable
from onward.providers.openvino.provider import OpenVINOProvider
from tests.models import mlp, sandwich, serialized

NAME = "OpenVINOExecutionProvider"
Array = np.ndarray[Any, Any]


def parsed(graph: str, opset: int = 21) -> bytes:
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> {graph}'
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def alone(model: Any, given: dict[str, Any] | None = None, **options: Any) -> Any:
    """A session in which nobody but OpenVINO may run anything."""
    settings = onward.SessionOptions(disable_fallback=True, **options)
    return onward.InferenceSession(model, settings, [(NAME, given or {})])


def stock(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def executable(session: Any) -> OpenVINOExecutable:
    [step] = session._plan._parts
    assert isinstance(step.executable, OpenVINOExecutable)
    return step.executable


# -- choosing it -------------------------------------------------------------------------------


def test_it_stands_after_onnxruntimes_own_and_before_torch() -> None:
    names = onward.get_available_providers()
    assert names.index("CPUExecutionProvider") < names.index(NAME)
    assert names.index(NAME) < names.index("ReferenceExecutionProvider")


def test_it_runs_what_it_is_given_and_nothing_unless_named() -> None:
    session = alone(mlp())
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], stock(serialized(mlp()), {"x": x})[0], rtol=1e-6
    )
    assert session.get_providers() == [NAME]
    assert NAME not in onward.InferenceSession(mlp()).get_providers()


def test_a_machine_without_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ProviderError, match=r"not on this machine\n.*pip install onward\[openvino\]"
    ):
        alone(mlp())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speed": 1}, f"{NAME} has no option 'speed'; it has 'precision', 'device', 'thr"),
        ({"precision": "f8"}, "precision is f32, f16 or bf16, not 'f8'"),
        ({"device": "TPU"}, "OpenVINO has no device 'TPU' here: it has .*CPU.*AUTO"),
        ({"threads": "many"}, "threads is a whole number from 0 on, not 'many'"),
        ({"threads": -1}, "threads is a whole number from 0 on, not -1"),
    ],
)
def test_a_wrong_option_is_one_clear_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        alone(mlp(), given)


def test_a_memory_limit_is_held_by_the_session() -> None:
    session = alone(mlp(), memory_limit=10_000)
    assert session.run(None, {"x": np.ones((2, 4), np.float32)})[0].shape == (2, 2)
    with pytest.raises(MemoryLimitExceeded, match="more than its memory limit of 10,000 bytes"):
        session.run(None, {"x": np.ones((5000, 4), np.float32)})


def test_threads_come_from_the_option_or_from_the_session() -> None:
    def threads(session: Any) -> int:
        return int(executable(session)._native.get_property("INFERENCE_NUM_THREADS"))

    assert threads(alone(mlp(), intra_op_num_threads=1)) == 1
    assert threads(alone(mlp(), {"threads": "1"})) == 1


def test_compiled_models_are_kept_in_cache_dir(tmp_path: Path) -> None:
    for _ in range(2):
        alone(mlp(), {"cache_dir": tmp_path})
    assert len(list(tmp_path.iterdir())) == 1


# -- precision and types -----------------------------------------------------------------------


def test_it_computes_in_float32_unless_less_is_allowed() -> None:
    model = parsed("g (float[a,b] x, float[b,c] w) => (float[a,c] y) { y = MatMul(x, w) }")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(8, 512)), "w": rng.normal(size=(512, 8))}
    exact = feeds["x"] @ feeds["w"]
    single = {name: array.astype(np.float32) for name, array in feeds.items()}
    [y] = alone(model).run(None, single)
    assert np.abs(y - exact).max() < 1e-4
    hint = executable(alone(model))._native.get_property("INFERENCE_PRECISION_HINT")
    assert "32" in str(hint)


def test_half_precision_is_taken_where_the_machine_has_it() -> None:
    try:
        session = alone(mlp(), {"precision": "f16"})
    except OptionError as error:
        assert "does not compute in f16 on this machine" in str(error)
        return
    assert "16" in str(executable(session)._native.get_property("INFERENCE_PRECISION_HINT"))


@pytest.mark.parametrize(
    "graph",
    [
        "g (double[n] x) => (double[n] y) { y = Sqrt(x) }",
        "g (bfloat16[n] x) => (bfloat16[n] y) { y = Neg(x) }",
        "g (uint64[n] x) => (uint64[n] y) { y = Identity(x) }",
        "g (string[n] x) => (string[n] y) { y = Identity(x) }",
        "g (int64[n] x) => (int64[n] y) { y = Add(x, x) }",
        "g (int32[n] x) => (int32[n] y) { y = Neg(x) }",
        "g (uint8[n] x) => (uint8[n] y) { y = Sub(x, x) }",
        "g (int64[n] x) => (bool[n] y) { y = Less(x, x) }",
        "g (int64[n] x) => (int64[n] y) <int64 big = {5000000000}> { y = Max(x, big) }",
    ],
)
def test_what_it_would_compute_in_another_type_runs_elsewhere(graph: str) -> None:
    with pytest.raises(UnsupportedModel, match="no provider runs"):
        alone(parsed(graph))


@pytest.mark.parametrize(
    "graph",
    [
        "g (int64[n] x) => (int64[n] y) { y = Identity(x) }",
        "g (int32[n] x) => (int32[m] y) { y = Concat<axis = 0>(x, x) }",
        "g (int64[n] x) => (bool[n] y) <int64 pad = {7}> { y = Equal(x, pad) }",
        "g (int64[n] x) => (int64[1] y) { s = Shape(x)  t = Add(s, s)  y = Mul(t, s) }",
        "g (int64[n] x) => (float[n] y) { y = Cast<to = 1>(x) }",
    ],
)
def test_integers_that_stay_whole_are_its_own(graph: str) -> None:
    model, numbers = parsed(graph), np.array([7, 2**24 + 1, -(2**31) + 3])
    x = numbers.astype(np.int32 if "int32[n] x" in graph else np.int64)
    [y] = alone(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, stock(model, {"x": x})[0])


def test_an_int64_of_more_than_32_bits_is_an_error_not_another_number() -> None:
    session = alone(parsed("g (int64[n] x) => (int64[n] y) { y = Identity(x) }"))
    with pytest.raises(ProviderError, match="keeps 32 bits of an int64, and 'x' holds 5,000,000"):
        session.run(None, {"x": np.array([1, 5_000_000_000])})


# -- running -----------------------------------------------------------------------------------


def test_eight_threads_each_get_their_own_answer() -> None:
    session = alone(mlp())
    rng = np.random.default_rng(0)
    feeds = [rng.normal(size=(1 + number % 5, 4)).astype(np.float32) for number in range(200)]
    theirs = onnxruntime.InferenceSession(serialized(mlp()), providers=["CPUExecutionProvider"])
    wanted = [theirs.run(None, {"x": x})[0] for x in feeds]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: session.run(None, {"x": x})[0], feeds))
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [0, 1, 3, 30_000])
def test_results_are_the_callers_and_feeds_are_left_alone(size: int) -> None:
    session = alone(
        parsed("g (float[n] x) => (float[n] y, float[n] z) { y = Relu(x)  z = Identity(x) }")
    )
    x = np.linspace(-1, 1, size, dtype=np.float32)
    kept = x.copy()
    first = session.run(None, {"x": x})
    copies = [result.copy() for result in first]
    session.run(None, {"x": np.full(size, 9, np.float32)})
    for result, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(result, copy)
        result[...] = 5
    np.testing.assert_array_equal(x, kept)


def test_feeds_may_be_scalars_strided_or_read_only() -> None:
    session = alone(parsed("g (float s, float[n] x) => (float[n] y) { y = Mul(s, x) }"))
    wide = np.arange(60_000, dtype=np.float32)
    frozen = wide.copy()
    frozen.flags.writeable = False
    for x in (wide[::2], frozen, wide[:3]):
        [y] = session.run(None, {"s": np.float32(2), "x": x})
        np.testing.assert_array_equal(y, 2 * x)


def test_an_overridable_initializer_is_its_default_until_it_is_fed() -> None:
    model = parsed("g (float[n] x, float k = {3}) => (float[n] y) { y = Mul(x, k) }")
    session, x = alone(model), np.ones(2, np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [3, 3])
    np.testing.assert_array_equal(session.run(None, {"x": x, "k": np.float32(5)})[0], [5, 5])


def test_inputs_that_nobody_reads_or_that_are_outputs_are_no_trouble() -> None:
    model = parsed(
        "g (float[3] x, float[n] unused) => (float[3] y, bool[3] mask) { y, mask = Dropout(x) }"
    )
    x = np.arange(3, dtype=np.float32)
    y, mask = alone(model).run(None, {"x": x, "unused": x[:2]})
    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_large_weights_are_shared_not_copied() -> None:
    model = parsed("g (float[n,300] x) => (float[n,300] y) <float[300,300] w> { y = MatMul(x, w) }")
    proto = onnx.load_from_string(model)
    w = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    del proto.graph.input[1:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = np.ones((2, 300), np.float32)
    session = alone(proto)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ w, rtol=1e-4, atol=1e-4)
    assert len(executable(session)._weights) == 1


def test_a_run_that_fails_names_the_operator() -> None:
    session = alone(parsed("g (float[a] x, float[b] z) => (float[c] y) { y = Add(x, z) }"))
    with pytest.raises(NodeFailed, match=r"OpenVINO failed: .*Add node with name 'y'") as caught:
        session.run(None, {"x": np.ones(3, np.float32), "z": np.ones(4, np.float32)})
    assert "\n" not in str(caught.value)
    [y] = session.run(None, {"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)})
    np.testing.assert_array_equal(y, [2, 2, 2])


def test_terminate_ends_a_run() -> None:
    steps = "  ".join(f"x{n + 1} = MatMul(x{n}, x{n})" for n in range(80))
    session = alone(parsed(f"g (float[n,n] x0) => (float[n,n] x80) {{ {steps} }}"))
    options = onward.RunOptions()
    x = np.zeros((1000, 1000), np.float32)
    started = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
    started.start()
    with pytest.raises(ProviderError, match=r"ended by RunOptions\.terminate"):
        session.run(None, {"x0": x}, options)
    started.join()


def test_a_run_that_is_over_cannot_be_ended() -> None:
    session, x = alone(mlp()), np.ones((1, 4), np.float32)
    options = onward.RunOptions()
    [before] = session.run(None, {"x": x}, options)
    options.terminate = True
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], before)
    with pytest.raises(ProviderError, match="terminate"):
        session.run(None, {"x": x}, options)


def test_profiling_tells_what_each_node_took() -> None:
    session = alone(mlp(), enable_profiling=True)
    session.run(None, {"x": np.ones((3, 4), np.float32)})
    part = executable(session)
    times = part.node_times()
    assert times and all(seconds >= 0 for _, _, seconds in times)
    assert [event["args"]["provider"] for event in part.node_events(0)] == [NAME] * len(times)


# -- with others -------------------------------------------------------------------------------


def test_a_model_is_divided_where_it_cannot_have_all() -> None:
    names = [NAME, "ReferenceExecutionProvider"]
    session = onward.InferenceSession(
        sandwich(), onward.SessionOptions(disable_fallback=True), names
    )
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x)
    assert session.get_providers() == names
    assert [step[0] for step in session._plan.parts] == [names[0], names[1], names[0]]


def test_onnxruntime_takes_the_part_in_the_middle() -> None:
    model = parsed("g (float[n] x) => (float[n] y) { a = Exp(x)  b = Log(a)  y = Neg(b) }")
    session = onward.InferenceSession(
        model,
        onward.SessionOptions(disable_fallback=True, graph_optimization_level=0),
        [NAME, "CPUExecutionProvider"],
    )
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], -x, atol=1e-6)
    assert session.get_providers() == [NAME, "CPUExecutionProvider"]


def test_a_cast_is_not_merged_into_the_arithmetic_after_it() -> None:
    """OpenVINO (2026.4, ARM) computes 0.5 * Cast(6) in integers, unless it is kept from it."""
    model = parsed(
        "g (float[n] x) => (float[n] y) { s = Size(x)  c = Cast<to = 1>(s)  y = Mul(x, c) }"
    )
    x = np.array([0.5, -0.25, 300.75], np.float32)
    np.testing.assert_array_equal(alone(model).run(None, {"x": x})[0], 3 * x)
    assert [output.name for output in alone(model).get_outputs()] == ["y"]


def test_dynamic_sizes_change_from_run_to_run() -> None:
    session = alone(mlp())
    for batch in (1, 7, 2, 0, 7):
        x = np.ones((batch, 4), np.float32)
        assert session.run(None, {"x": x})[0].shape == (batch, 2)


def test_a_part_that_it_cannot_compile_after_all_goes_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: OpenVINOProvider, model: Any) -> Any:
        raise RuntimeError("Exception from somewhere.cpp:1:\nnot today")

    monkeypatch.setattr(OpenVINOProvider, "supports", lambda self, node, opsets: True)
    monkeypatch.setattr(OpenVINOProvider, "_compile", fail)
    session = onward.InferenceSession(mlp(), providers=[NAME, "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(ProviderError, match="OpenVINO cannot run its part of the model: not today"):
        alone(mlp())
