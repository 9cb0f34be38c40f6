"""OpenVINOExecutionProvider: options, threads, types, and models partitioned with others."""

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
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.errors import (
    MemoryLimitExceeded,
    NodeFailed,
    OptionError,
    ProviderError,
    UnsupportedModel,
)
from onward.graph.builder import OpBuilder
from onward.providers.defect import X86, architecture
from onward.providers.openvino.executable import OpenVINOExecutable
from onward.providers.openvino.provider import OpenVINOProvider
from tests.models import mlp, sandwich, serialized

NAME = "OpenVINOExecutionProvider"
Array = np.ndarray[Any, Any]


def parsed(graph: str, opset: int = 21) -> bytes:
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> {graph}'
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def alone(model: Any, given: dict[str, Any] | None = None, **options: Any) -> Any:
    """A session in which only OpenVINO runs nodes."""
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


def test_openvino_is_listed_between_onnxruntime_and_torch() -> None:
    names = onward.get_available_providers()
    assert names.index("CPUExecutionProvider") < names.index(NAME)
    assert names.index(NAME) < names.index("ReferenceExecutionProvider")


def test_openvino_runs_only_if_named() -> None:
    session = alone(mlp())
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], stock(serialized(mlp()), {"x": x})[0], rtol=1e-6
    )
    assert session.get_providers() == [NAME]
    assert NAME not in onward.InferenceSession(mlp()).get_providers()


def test_missing_openvino_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ProviderError, match=r"not on this machine\n.*pip install onward\[openvino\]"
    ):
        alone(mlp())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speed": 1}, f"{NAME} has no option 'speed'; it has 'precision', 'device', 'thr"),
        ({"precision": "f8"}, "precision must be f32, f16 or bf16, not 'f8'"),
        ({"device": "TPU"}, "OpenVINO has no device 'TPU' here: it has .*CPU.*AUTO"),
        ({"threads": "many"}, "threads must be a whole number, 0 or more, not 'many'"),
        ({"threads": -1}, "threads must be a whole number, 0 or more, not -1"),
        ({"dynamic_quantization": 32}, "dynamic_quantization must be True or False, not 32"),
    ],
)
def test_wrong_option_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        alone(mlp(), given)


def test_memory_limit() -> None:
    session = alone(mlp(), memory_limit=10_000)
    assert session.run(None, {"x": np.ones((2, 4), np.float32)})[0].shape == (2, 2)
    with pytest.raises(MemoryLimitExceeded, match="more than its memory limit of 10,000 bytes"):
        session.run(None, {"x": np.ones((5000, 4), np.float32)})


def test_threads_from_provider_or_session_options() -> None:
    def threads(session: Any) -> int:
        return int(executable(session)._native.get_property("INFERENCE_NUM_THREADS"))

    assert threads(alone(mlp(), intra_op_num_threads=1)) == 1
    assert threads(alone(mlp(), {"threads": "1"})) == 1


def test_cache_dir_holds_compiled_models(tmp_path: Path) -> None:
    for _ in range(2):
        alone(mlp(), {"cache_dir": tmp_path})
    assert len(list(tmp_path.iterdir())) == 1


# -- precision and types -----------------------------------------------------------------------


def test_default_precision_is_float32() -> None:
    model = parsed("g (float[a,b] x, float[b,c] w) => (float[a,c] y) { y = MatMul(x, w) }")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(8, 512)), "w": rng.normal(size=(512, 8))}
    exact = feeds["x"] @ feeds["w"]
    single = {name: array.astype(np.float32) for name, array in feeds.items()}
    [y] = alone(model).run(None, single)
    assert np.abs(y - exact).max() < 1e-4
    hint = executable(alone(model))._native.get_property("INFERENCE_PRECISION_HINT")
    assert "32" in str(hint)


def test_float16_precision_if_the_machine_has_it() -> None:
    try:
        session = alone(mlp(), {"precision": "f16"})
    except OptionError as error:
        assert "does not compute in f16 on this machine" in str(error)
        return
    assert "16" in str(executable(session)._native.get_property("INFERENCE_PRECISION_HINT"))


def test_data_is_rounded_where_weights_have_4_bits_as_onnxruntime_does() -> None:
    rng = np.random.default_rng(0)
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 256))
    w = rng.normal(size=(256, 64)).astype(np.float32)
    model = op.model(y=op.MatMul(x, op.initializer("w", w)))
    quantizer = WeightQuantizer(model, bits=4)
    small = quantizer.write(quantizer.plan)
    feeds = {"x": rng.normal(size=(16, 256)).astype(np.float32)}
    exact = onward.InferenceSession(small, providers=["reference"]).run(None, feeds)[0]

    def distance(session: Any) -> float:
        return float(np.linalg.norm(session.run(None, feeds)[0] - exact) / np.linalg.norm(exact))

    assert distance(alone(small, {"dynamic_quantization": "false"})) < 1e-5
    assert distance(alone(small)) < 0.02
    assert group_of(alone(small)) == (32 if architecture() == X86 else 0)
    assert group_of(alone(small, {"dynamic_quantization": False})) == group_of(alone(model)) == 0


def group_of(session: Any) -> int:
    return int(executable(session)._native.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE"))


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
def test_node_that_openvino_computes_in_another_type_is_refused(graph: str) -> None:
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
def test_node_with_exact_integers_is_supported(graph: str) -> None:
    model, numbers = parsed(graph), np.array([7, 2**24 + 1, -(2**31) + 3])
    x = numbers.astype(np.int32 if "int32[n] x" in graph else np.int64)
    [y] = alone(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, stock(model, {"x": x})[0])


@pytest.mark.parametrize("low", [-1.0, -0.2])  # the second: blocks with zeros
def test_product_reads_constant_weights_of_4_bits(low: float) -> None:
    rng = np.random.default_rng(0)
    w = rng.uniform(low, 1, (64, 48)).astype(np.float32)
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", ("batch", 64))
    quantizer = WeightQuantizer(op.model(y=op.MatMul(x, op.initializer("w", w))), method="rtn")
    model = quantizer.write(quantizer.plan)
    assert ("zeros" in str(sorted(model.graph.initializers))) == (low == -0.2)
    feeds = {"x": rng.normal(size=(3, 64)).astype(np.float32)}
    [found] = alone(model).run(None, feeds)
    [expected] = onward.InferenceSession(model, providers=["reference"]).run(None, feeds)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_fed_weights_of_4_bits_are_refused() -> None:
    graph = "g (int4[4] w) => (float[4] y) <float s = {0.5}> { y = DequantizeLinear(w, s) }"
    with pytest.raises(UnsupportedModel, match=r"no provider runs ai\.onnx::DequantizeLinear"):
        alone(parsed(graph))


def test_int64_of_more_than_32_bits_raises() -> None:
    session = alone(parsed("g (int64[n] x) => (int64[n] y) { y = Identity(x) }"))
    with pytest.raises(
        ProviderError, match="computes int64 in 32 bits, and input 'x' holds 5,000,000"
    ):
        session.run(None, {"x": np.array([1, 5_000_000_000])})


# -- running -----------------------------------------------------------------------------------


def test_eight_threads_run_at_the_same_time() -> None:
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
def test_results_and_feeds_are_not_overwritten(size: int) -> None:
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


def test_scalar_strided_and_read_only_feeds() -> None:
    session = alone(parsed("g (float s, float[n] x) => (float[n] y) { y = Mul(s, x) }"))
    wide = np.arange(60_000, dtype=np.float32)
    frozen = wide.copy()
    frozen.flags.writeable = False
    for x in (wide[::2], frozen, wide[:3]):
        [y] = session.run(None, {"s": np.float32(2), "x": x})
        np.testing.assert_array_equal(y, 2 * x)


def test_overridable_initializer_has_its_default() -> None:
    model = parsed("g (float[n] x, float k = {3}) => (float[n] y) { y = Mul(x, k) }")
    session, x = alone(model), np.ones(2, np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [3, 3])
    np.testing.assert_array_equal(session.run(None, {"x": x, "k": np.float32(5)})[0], [5, 5])


def test_unused_inputs_and_inputs_that_are_outputs() -> None:
    model = parsed(
        "g (float[3] x, float[n] unused) => (float[3] y, bool[3] mask) { y, mask = Dropout(x) }"
    )
    x = np.arange(3, dtype=np.float32)
    y, mask = alone(model).run(None, {"x": x, "unused": x[:2]})
    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_large_weights_are_not_copied() -> None:
    model = parsed("g (float[n,300] x) => (float[n,300] y) <float[300,300] w> { y = MatMul(x, w) }")
    proto = onnx.load_from_string(model)
    w = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    del proto.graph.input[1:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = np.ones((2, 300), np.float32)
    session = alone(proto)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ w, rtol=1e-4, atol=1e-4)
    assert len(executable(session)._weights) == 1


def test_failed_run_names_the_operator() -> None:
    session = alone(parsed("g (float[a] x, float[b] z) => (float[c] y) { y = Add(x, z) }"))
    with pytest.raises(NodeFailed, match=r"OpenVINO failed: .*Add node with name 'y'") as caught:
        session.run(None, {"x": np.ones(3, np.float32), "z": np.ones(4, np.float32)})
    assert "\n" not in str(caught.value)
    [y] = session.run(None, {"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)})
    np.testing.assert_array_equal(y, [2, 2, 2])


def test_terminate_stops_a_run() -> None:
    steps = "  ".join(f"x{n + 1} = MatMul(x{n}, x{n})" for n in range(80))
    session = alone(parsed(f"g (float[n,n] x0) => (float[n,n] x80) {{ {steps} }}"))
    options = onward.RunOptions()
    x = np.zeros((1000, 1000), np.float32)
    started = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
    started.start()
    with pytest.raises(ProviderError, match=r"ended by RunOptions\.terminate"):
        session.run(None, {"x0": x}, options)
    started.join()


def test_terminate_after_a_run_has_no_effect() -> None:
    session, x = alone(mlp()), np.ones((1, 4), np.float32)
    options = onward.RunOptions()
    [before] = session.run(None, {"x": x}, options)
    options.terminate = True
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], before)
    with pytest.raises(ProviderError, match="terminate"):
        session.run(None, {"x": x}, options)


def test_profiling_records_every_node() -> None:
    session = alone(mlp(), enable_profiling=True)
    session.run(None, {"x": np.ones((3, 4), np.float32)})
    part = executable(session)
    times = part.node_times()
    assert times and all(seconds >= 0 for _, _, seconds in times)
    assert [event["args"]["provider"] for event in part.node_events(0)] == [NAME] * len(times)


# -- with others -------------------------------------------------------------------------------


def test_model_with_an_unsupported_node_is_partitioned() -> None:
    names = [NAME, "ReferenceExecutionProvider"]
    session = onward.InferenceSession(
        sandwich(), onward.SessionOptions(disable_fallback=True), names
    )
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x)
    assert session.get_providers() == names
    assert [step[0] for step in session._plan.parts] == [names[0], names[1], names[0]]


def test_onnxruntime_runs_the_part_in_the_middle() -> None:
    model = parsed("g (float[n] x) => (float[n] y) { a = Exp(x)  b = Softplus(a)  y = Neg(b) }")
    session = onward.InferenceSession(
        model,
        onward.SessionOptions(disable_fallback=True, graph_optimization_level=0),
        [NAME, "CPUExecutionProvider"],
    )
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], -np.log1p(np.exp(np.exp(x))), atol=1e-6
    )
    assert session.get_providers() == [NAME, "CPUExecutionProvider"]


def test_cast_is_not_merged_into_the_next_node() -> None:
    """OpenVINO (2026.4, ARM) computes 0.5 * Cast(6) in integers, unless it is kept from it."""
    model = parsed(
        "g (float[n] x) => (float[n] y) { s = Size(x)  c = Cast<to = 1>(s)  y = Mul(x, c) }"
    )
    x = np.array([0.5, -0.25, 300.75], np.float32)
    np.testing.assert_array_equal(alone(model).run(None, {"x": x})[0], 3 * x)
    assert [output.name for output in alone(model).get_outputs()] == ["y"]


def test_dynamic_shapes() -> None:
    session = alone(mlp())
    for batch in (1, 7, 2, 0, 7):
        x = np.ones((batch, 4), np.float32)
        assert session.run(None, {"x": x})[0].shape == (batch, 2)


def test_part_that_does_not_compile_runs_in_the_next_provider(
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
