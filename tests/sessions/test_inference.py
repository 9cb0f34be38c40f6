"""InferenceSession: onnxruntime's contract, on every provider, with errors that say what to do."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from safetensors.numpy import save_file

import onward
from onward.errors import (
    FeedError,
    InvalidModel,
    LimitExceeded,
    MemoryLimitExceeded,
    OptionError,
    ProviderMissing,
    UnsupportedModel,
)
from onward.graph.builder import OpBuilder
from onward.sessions.ort_plan import OrtPlan
from onward.sessions.partitioned_plan import PartitionedPlan
from tests.models import mlp, needs, sandwich, serialized

X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
CPU, TORCH, REFERENCE = (
    "CPUExecutionProvider",
    "TorchExecutionProvider",
    "ReferenceExecutionProvider",
)
PROVIDERS = [CPU, TORCH, REFERENCE]
ALONE = onward.SessionOptions(disable_fallback=True)


def expected() -> Any:
    session = onnxruntime.InferenceSession(serialized(mlp()), providers=[CPU])
    return session.run(None, {"x": X})[0]


# -- opening -------------------------------------------------------------------------------------


def test_every_source_opens(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onward.save(mlp(), path)
    for source in (path, str(path), serialized(mlp()), ir.to_proto(mlp()), mlp()):
        (y,) = onward.InferenceSession(source).run(None, {"x": X})
        np.testing.assert_array_equal(y, expected())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_gives_onnxruntimes_answer(provider: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), ALONE, [provider])
    assert session.get_providers() == [provider]
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], expected(), rtol=1e-6)


def test_a_callers_model_is_not_changed() -> None:
    model = mlp()
    before = serialized(model)
    onward.InferenceSession(model, providers=[TORCH]).run(None, {"x": X})
    onward.InferenceSession(model).run(None, {"x": X})
    assert serialized(model) == before


def test_unsupported_operators_divide_a_model() -> None:
    pytest.importorskip("torch")
    assert isinstance(onward.InferenceSession(serialized(mlp()))._plan, OrtPlan)
    plan = onward.InferenceSession(sandwich())._plan
    assert isinstance(plan, PartitionedPlan)
    assert [provider for provider, _, _ in plan.parts] == [CPU, TORCH, CPU]


def test_a_divided_model_matches_the_reference() -> None:
    (y,) = onward.InferenceSession(sandwich()).run(None, {"x": X})
    np.testing.assert_allclose(y, X**3, rtol=1e-5)


def test_ort_format_opens(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(serialized(mlp()), options)
    for source in (tmp_path / "m.ort", (tmp_path / "m.ort").read_bytes()):
        np.testing.assert_array_equal(
            onward.InferenceSession(source).run(None, {"x": X})[0], expected()
        )


def test_ort_format_runs_only_on_onnxruntime(tmp_path: Path) -> None:
    op = OpBuilder()  # a name that the default looks into in an ONNX model
    model = op.model(y=op.Identity(op.Dropout(op.input("Attention", "float32", (2,)))))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(serialized(model), options)
    feeds = {"Attention": np.ones(2, np.float32)}
    assert onward.InferenceSession(tmp_path / "m.ort").run(None, feeds)[0].tolist() == [1, 1]
    with pytest.raises(OptionError, match="whether an ORT-format model draws random numbers"):
        onward.InferenceSession(tmp_path / "m.ort", onward.SessionOptions(result_cache_bytes=1))
    with pytest.raises(InvalidModel, match="runs only on onnxruntime's providers"):
        onward.InferenceSession(tmp_path / "m.ort", providers=[TORCH])
    (tmp_path / "m.ort").write_bytes(b"nonsense")
    with pytest.raises(InvalidModel, match="cannot load this ORT-format model"):
        onward.InferenceSession(tmp_path / "m.ort")


def test_external_data_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.graph.files._EMBEDDED_AT_MOST", 16)
    op = OpBuilder()
    w = op.initializer("w", np.random.default_rng(0).normal(size=(4, 500)).astype(np.float32))
    model = op.model(y=op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    onward.save(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").exists()
    for providers in (None, [CPU], [TORCH]):
        (y,) = onward.InferenceSession(tmp_path / "m.onnx", providers=providers).run(None, {"x": X})
        weight = model.graph.initializers["w"].const_value
        assert weight is not None
        np.testing.assert_allclose(y, X @ weight.numpy(), rtol=1e-5)


def test_external_data_comes_from_the_models_folder_never_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.graph.files._EMBEDDED_AT_MOST", 16)
    for number, folder in enumerate(("here", "there")):
        (tmp_path / folder).mkdir()
        op = OpBuilder()
        w = op.initializer("w", np.full(500, number, np.float32))
        model = op.model(y=op.Add(op.input("x", "float32", (1,)), w))
        onward.save(model, tmp_path / folder / "m.onnx")
    monkeypatch.chdir(tmp_path / "here")
    for providers in (None, [CPU], [TORCH]):
        session = onward.InferenceSession(tmp_path / "there" / "m.onnx", providers=providers)
        assert session.run(None, {"x": np.zeros(1, np.float32)})[0][0] == 1
    with pytest.raises(InvalidModel, match="came without a folder"):
        onward.InferenceSession((tmp_path / "there" / "m.onnx").read_bytes())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_weights_come_from_safetensors(tmp_path: Path, provider: str) -> None:
    save_file({"w": np.ones((4, 2), np.float32)}, tmp_path / "w.safetensors")
    session = onward.InferenceSession(mlp(), ALONE, [provider], weights=tmp_path / "w.safetensors")
    wanted = np.maximum(X.sum(1, keepdims=True) + 0.5, 0).repeat(2, 1)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_torch_program_opens(tmp_path: Path) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.from_numpy(X),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(LimitExceeded, match=r"may unpickle.*\n.*ModelLimits\.allow_pickle"):
        onward.InferenceSession(tmp_path / "m.pt2")
    trusted = onward.SessionOptions(limits=onward.ModelLimits(allow_pickle=True))
    session = onward.InferenceSession(tmp_path / "m.pt2", trusted)
    (y,) = session.run(None, {session.get_inputs()[0].name: X[:2]})
    np.testing.assert_allclose(y, module(torch.from_numpy(X[:2])).detach().numpy(), rtol=1e-5)


def test_sources_that_are_not_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "bad.pt2").write_bytes(b"no program")
    with pytest.raises(InvalidModel, match=r"bad\.onnx: not an ONNX model"):
        onward.InferenceSession(tmp_path / "bad.onnx")
    with pytest.raises(InvalidModel, match=r"bad\.pt2 is not a torch\.export program"):
        onward.InferenceSession(tmp_path / "bad.pt2")
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        onward.InferenceSession(b"")
    with pytest.raises(FileNotFoundError, match="no model at nowhere"):
        onward.InferenceSession("nowhere.onnx")
    with pytest.raises(InvalidModel, match="is not a file"):
        onward.InferenceSession(tmp_path)
    with pytest.raises(TypeError, match="a model must be a path"):
        onward.InferenceSession(3)  # type: ignore[arg-type]


# -- providers -----------------------------------------------------------------------------------


def test_an_unknown_provider_is_named_with_the_nearest() -> None:
    with pytest.raises(
        OptionError, match=r"no provider 'CPUProvider'\nthis machine has cpu, .*'cpu'"
    ):
        onward.InferenceSession(serialized(mlp()), providers=["CPUProvider"])


def test_a_provider_that_is_not_here_is_a_warning_and_without_fallback_an_error() -> None:
    with pytest.warns(UserWarning, match="CoreMLExecutionProvider is not on this machine"):
        session = onward.InferenceSession(mlp(), providers=["CoreMLExecutionProvider", CPU])
    assert session.get_providers() == [CPU]
    with pytest.raises(ProviderMissing, match="CoreMLExecutionProvider is not on this machine"):
        onward.InferenceSession(mlp(), ALONE, ["CoreMLExecutionProvider", CPU])


def test_provider_options_come_in_both_of_onnxruntimes_ways() -> None:
    for providers, options in (
        ([(TORCH, {"device": "cpu"})], None),
        ([TORCH], [{"device": "cpu"}]),
    ):
        session = onward.InferenceSession(mlp(), ALONE, providers, options)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    with pytest.raises(OptionError, match="one dict for each name"):
        onward.InferenceSession(mlp(), None, [TORCH], [{}, {}])
    with pytest.raises(OptionError, match="has no option 'devise'; did you mean 'device'"):
        onward.InferenceSession(mlp(), None, [(TORCH, {"devise": "cpu"})])
    with pytest.raises(OptionError, match="torch has no device 'nowhere'"):
        onward.InferenceSession(mlp(), None, [(TORCH, {"device": "nowhere"})])
    with pytest.raises(TypeError, match="providers must be a list of names"):
        onward.InferenceSession(mlp(), providers=CPU)  # type: ignore[arg-type]


def test_an_operator_without_provider_is_named() -> None:
    limits = onward.ModelLimits(allow_domains=frozenset({"my.own"}))
    with pytest.raises(
        UnsupportedModel, match=r"no provider runs my\.own::Frobnicate \(node 'the_node'\)"
    ):
        onward.InferenceSession(
            needs("Frobnicate", domain="my.own"), onward.SessionOptions(limits=limits)
        )


@pytest.mark.parametrize("by", ["attribute", "config entry", "onnxruntime's own options"])
def test_with_fallback_disabled_an_unsupported_node_is_an_error(by: str) -> None:
    options: Any = onward.SessionOptions(disable_fallback=True)
    if by == "config entry":
        options = onward.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if by == "onnxruntime's own options":
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(UnsupportedModel, match=r"no provider runs ai\.onnx::Pow"):
        onward.InferenceSession(sandwich(), options, [CPU])
    (y,) = onward.InferenceSession(sandwich(), None, [CPU]).run(None, {"x": X})
    np.testing.assert_allclose(y, X**3, rtol=1e-5)


def test_providers_can_be_changed() -> None:
    session = onward.InferenceSession(serialized(mlp()))
    session.set_providers([TORCH])
    assert session.get_providers() == [TORCH]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)


# -- what it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_signature_is_onnxruntimes(provider: str) -> None:
    data = serialized(mlp())
    ours, theirs = (
        onward.InferenceSession(data, None, [provider]),
        onnxruntime.InferenceSession(data),
    )
    for mine, its in (
        (ours.get_inputs(), theirs.get_inputs()),
        (ours.get_outputs(), theirs.get_outputs()),
    ):
        assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in its]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_metadata_is_onnxruntimes(provider: str) -> None:
    proto = ir.to_proto(mlp())
    proto.producer_name, proto.domain, proto.doc_string, proto.model_version = "me", "my", "doc", 7
    proto.graph.doc_string = "graph doc"
    entry = proto.metadata_props.add()
    entry.key, entry.value = "k", "v"
    ours = onward.InferenceSession(proto, None, [provider]).get_modelmeta()
    theirs = onnxruntime.InferenceSession(proto.SerializeToString()).get_modelmeta()
    for name in (
        "producer_name",
        "graph_name",
        "domain",
        "description",
        "graph_description",
        "version",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.custom_metadata_map == {"k": "v"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_initializers_that_are_inputs_can_be_fed(provider: str) -> None:
    proto = ir.to_proto(mlp())
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4, 2]))
    session = onward.InferenceSession(proto, None, [provider])
    assert [a.name for a in session.get_inputs()] == ["x"]
    assert [a.name for a in session.get_overridable_initializers()] == ["w"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    (y,) = session.run(None, {"x": X, "w": np.zeros((4, 2), np.float32)})
    assert np.unique(y).tolist() == [0.5]


# -- running -------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": X, "z": X}, "no input 'z'; the model takes 'x'"),
        (
            {"x": X.astype(np.float64)},
            r"input 'x' takes tensor\(float\), but was given tensor\(double\)",
        ),
        ({"x": X[:, :3]}, "dimension 1 is 3"),
        ({"x": X[0]}, r"takes shape \(batch, 4\), but was given \(4\)"),
    ],
)
def test_a_wrong_feed_is_named(provider: str, feeds: dict[str, Any], message: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    with pytest.raises(FeedError, match=message):
        session.run(None, feeds)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_unknown_output_is_named(provider: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    with pytest.raises(KeyError, match="no output 'q'; the model gives 'y'"):
        session.run(["q"], {"x": X})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_feeds_that_are_not_arrays_of_memory_are_read(provider: str) -> None:
    import torch

    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    strided = np.ascontiguousarray(X.T).T
    readonly = X.copy()
    readonly.flags.writeable = False
    for feed in (X.tolist(), strided, readonly, X[::-1][::-1], torch.from_numpy(X)):
        np.testing.assert_allclose(session.run(None, {"x": feed})[0], expected(), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("level", [0, 99])
@pytest.mark.parametrize("outputs", [["x"], ["w"], ["y", "w"], ["y", "x"], ["y", "y"]])
def test_outputs_may_be_inputs_weights_or_twice_the_same(
    provider: str, level: int, outputs: list[str]
) -> None:
    nodes = [onnx.helper.make_node("Neg", ["x"], ["y"])] if "y" in outputs else []
    weight = onnx.numpy_helper.from_array(np.array([5, 6], np.float32), "w")
    given = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in outputs]
    x = onnx.helper.make_tensor_value_info("x", 1, [2])
    graph = onnx.helper.make_graph(nodes, "g", [x], given, [weight])
    imports = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onward.SessionOptions(graph_optimization_level=level, disable_fallback=True)
    session = onward.InferenceSession(model, options, [provider])
    results = session.run(None, {"x": np.array([1, 2], np.float32)})
    wanted = {"x": [1, 2], "y": [-1, -2], "w": [5, 6]}
    assert [result.tolist() for result in results] == [wanted[name] for name in outputs]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_empty_batches_run(provider: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    assert session.run(None, {"x": X[:0]})[0].shape == (0, 2)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_run_async_calls_back(provider: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    done, answers = threading.Event(), []

    def callback(results: list[Any], user_data: Any, error: str) -> None:
        answers.append((results, user_data, error))
        done.set()

    session.run_async(["y"], {"x": X}, callback, "mine")
    assert done.wait(30)
    ((results, user_data, error),) = answers
    assert (user_data, error) == ("mine", "")
    np.testing.assert_allclose(results[0], expected(), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ort_values_in_and_out(provider: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    value = onward.OrtValue.ortvalue_from_numpy(X)
    (y,) = session.run_with_ort_values(["y"], {"x": value})
    assert isinstance(y, onnxruntime.OrtValue)
    np.testing.assert_allclose(y.numpy(), expected(), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_io_binding_reads_and_writes_bound_memory(provider: str) -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [provider])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected(), rtol=1e-6)
    np.testing.assert_allclose(binding.get_outputs()[0].numpy(), expected(), rtol=1e-6)

    target = np.zeros((3, 2), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, target.shape, target.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(target, expected(), rtol=1e-6)

    place = onward.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onward.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("y", place)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(place.numpy(), expected(), rtol=1e-6)


def test_tensors_cross_from_part_to_part_without_copies() -> None:
    pytest.importorskip("torch")
    """The address that one engine wrote is the address that the next one reads."""
    session = onward.InferenceSession(sandwich())
    plan = session._plan
    assert isinstance(plan, PartitionedPlan)
    written, read = [], []
    first, second, third = plan._parts
    run_first, run_second, run_third = (
        first.executable.run,
        second.executable.run,
        third.executable.run,
    )

    def watch(run: Any, inputs: list[int], outputs: list[int]) -> Any:
        def wrapped(tensors: Any, options: Any = None) -> Any:
            inputs.append(tensors[0].data_ptr() if hasattr(tensors[0], "data_ptr") else 0)
            results = run(tensors, options)
            outputs.append(results[0].data_ptr())
            return results

        return wrapped

    for step, run in ((first, run_first), (second, run_second), (third, run_third)):
        step.executable.run = watch(run, read, written)  # type: ignore[method-assign]
    session.run(None, {"x": X})
    assert read[1:] == written[:2]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_results_are_the_callers_own(provider: str) -> None:
    """Writing into a result changes neither the feed, nor the model, nor another result."""
    op = OpBuilder()
    x = op.input("x", "float32", (4,))
    w = op.initializer("w", np.arange(4, dtype=np.float32))
    model = op.model(a=op.Reshape(x, [2, 2]), b=op.Identity(w), c=op.Identity(x), d=op.Identity(x))
    options = onward.SessionOptions(disable_fallback=True, graph_optimization_level=0)
    session = onward.InferenceSession(model, options, [provider])
    feed = np.ones(4, np.float32)
    for _ in range(2):
        a, b, c, d = session.run(None, {"x": feed})
        assert (b.tolist(), c.tolist(), d.tolist()) == ([0, 1, 2, 3], [1] * 4, [1] * 4)
        for result in (a, b, c):
            result[:] = 7
        assert feed.tolist() == d.tolist() == [1] * 4


def test_many_threads_may_share_a_session() -> None:
    for session in (
        onward.InferenceSession(serialized(mlp())),
        onward.InferenceSession(sandwich()),
    ):
        wanted = session.run(None, {"x": X})[0]
        wrong: list[Any] = []

        def work(session: Any = session, wanted: Any = wanted, wrong: Any = wrong) -> None:
            for _ in range(20):
                if not np.array_equal(session.run(None, {"x": X})[0], wanted):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


# -- settings ------------------------------------------------------------------------------------


def test_onnxruntimes_own_options_are_accepted_and_read() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onward.InferenceSession(serialized(mlp()), options)
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.get_session_options().graph_optimization_level == 0
    run_options = onnxruntime.RunOptions()
    np.testing.assert_array_equal(session.run(None, {"x": X}, run_options)[0], expected())
    with pytest.raises(TypeError, match="sess_options must be a SessionOptions, not dict"):
        onward.InferenceSession(serialized(mlp()), {})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_free_dimensions_are_fixed(provider: str) -> None:
    options = onward.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = onward.InferenceSession(serialized(mlp()), options, [provider])
    assert session.get_inputs()[0].shape == [2, 4]
    with pytest.raises(FeedError, match="dimension 0 is 3"):
        session.run(None, {"x": X})
    assert session.run(None, {"x": X[:2]})[0].shape == (2, 2)


@pytest.mark.parametrize("level", list(onward.GraphOptimizationLevel))
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_optimisation_level_gives_the_same_answer(provider: str, level: int) -> None:
    options = onward.SessionOptions(graph_optimization_level=level)
    session = onward.InferenceSession(serialized(mlp()), options, [provider])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_optimised_model_is_written(tmp_path: Path, provider: str) -> None:
    path = tmp_path / "optimised.onnx"
    options = onward.SessionOptions(optimized_model_filepath=str(path))
    onward.InferenceSession(serialized(mlp()), options, [provider])
    assert onward.load(path).graph.outputs[0].name == "y"


def test_independent_parts_run_side_by_side() -> None:
    op = OpBuilder(opset=28)
    x = op.input("x", "float32", (4,))
    a = op.Exp(op.Pow(op.Neg(x), np.uint32(3)))
    b = op.Exp(op.Pow(op.Abs(x), np.uint32(3)))
    options = onward.SessionOptions(
        execution_mode=onward.ExecutionMode.ORT_PARALLEL, inter_op_num_threads=2
    )
    session = onward.InferenceSession(op.model(a=a, b=b), options)
    feed = np.array([1, -2, 0.5, -1.5], np.float32)
    left, right = session.run(None, {"x": feed})
    np.testing.assert_allclose(left, np.exp(-(feed**3)), rtol=1e-6)
    np.testing.assert_allclose(right, np.exp(np.abs(feed) ** 3), rtol=1e-6)


def test_the_memory_limit_holds() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("n",))
    model = op.model(y=op.ReduceSum(op.Exp(op.Mul(x, 2.0)), keepdims=0))
    options = onward.SessionOptions(memory_limit=8 << 20, log_severity_level=4)
    session = onward.InferenceSession(model, options, [CPU])
    session.run(None, {"x": np.zeros(1000, np.float32)})
    with pytest.raises(MemoryLimitExceeded, match="more than its memory limit of 8,388,608 bytes"):
        session.run(None, {"x": np.zeros(8 << 20, np.float32)})
    session.run(None, {"x": np.zeros(1000, np.float32)})  # it goes on


def test_a_model_over_its_memory_limit_is_refused(
    tmp_path: Path,
) -> None:
    op = OpBuilder()
    w = op.initializer("w", np.zeros(1 << 20, np.float32))
    onward.save(op.model(y=op.Add(op.input("x", "float32", (1,)), w)), tmp_path / "m.onnx")
    options = onward.SessionOptions(memory_limit=1 << 20)
    for providers in ([CPU], [REFERENCE]):
        with pytest.raises(MemoryLimitExceeded, match="more than the memory limit of 1,048,576"):
            onward.InferenceSession(tmp_path / "m.onnx", options, providers)
    assert onward.load(tmp_path / "m.onnx").graph.num_nodes() == 1


@pytest.mark.parametrize("model", [mlp, sandwich])
def test_profiling_writes_a_trace(tmp_path: Path, model: Any) -> None:
    options = onward.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    session = onward.InferenceSession(model(), options)
    assert session.get_profiling_start_time_ns() > 0
    session.run(None, {"x": X})
    path = Path(session.end_profiling())
    assert path.parent == tmp_path
    events = json.loads(path.read_text())
    assert any(event.get("dur", 0) > 0 for event in events)


def test_the_log_level_is_honoured(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogger("onward").level
    onward.InferenceSession(sandwich(), onward.SessionOptions(log_severity_level=3))
    assert not caplog.messages
    onward.InferenceSession(sandwich(), onward.SessionOptions(log_severity_level=1))
    assert "onnxruntime does not run the model as it is" in caplog.text
    assert logging.getLogger("onward").level == before  # which is the whole program's


@pytest.mark.parametrize("provider", PROVIDERS)
def test_identical_feeds_are_answered_from_the_cache(provider: str) -> None:
    options = onward.SessionOptions(result_cache_bytes=1 << 20)
    session = onward.InferenceSession(serialized(mlp()), options, [provider])
    assert session.cache is not None
    first = session.run(None, {"x": X})[0]
    first[:] = 0  # a caller's copy is the caller's own
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    assert (session.cache.hits, session.cache.misses, session.cache.hit_rate) == (1, 1, 0.5)


def test_a_model_with_random_operators_is_not_cached() -> None:
    op = OpBuilder()
    model = op.model(y=op.RandomNormalLike(op.input("x", "float32", (2,))))
    with pytest.raises(OptionError, match=r"RandomNormalLike .* draws random numbers"):
        onward.InferenceSession(model, onward.SessionOptions(result_cache_bytes=1000))


_DROPS = "y, m = Dropout(x, half, {mode})"
_RANDOM_BODIES = {
    "in the graph": (_DROPS.format(mode="yes"), ""),
    "a mode that is fed": (_DROPS.format(mode="training"), ""),
    "in a branch": (
        """y = If(training) <then_branch = t () => (float[n] u) { u, m = Dropout(x, half, yes) },
        else_branch = e () => (float[n] v) { v = Identity(x) }>""",
        "",
    ),
    "in a function": (
        "y = mine.noisy(x, half, yes)",
        """<domain: "mine", opset_import: ["": 21]>
        noisy (a, r, mode) => (b) { b, m = Dropout(a, r, mode) }""",
    ),
}


def _dropout_model(body: str, function: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (float[n] x, bool training) => (float[n] y) {{
            half = Constant<value = float {{0.5}}>()
            yes = Constant<value = bool {{1}}>() no = Constant<value = bool {{0}}>()
            {body}
        }} {function}""")


@pytest.mark.parametrize("body, function", _RANDOM_BODIES.values(), ids=list(_RANDOM_BODIES))
def test_no_cache_for_a_dropout_that_may_drop(body: str, function: str) -> None:
    options = onward.SessionOptions(result_cache_bytes=1000)
    with pytest.raises(OptionError, match=r"Dropout \(node .*\) draws random numbers\nleave"):
        onward.InferenceSession(_dropout_model(body, function), options)


@pytest.mark.parametrize("place", ["in the graph", "in a function"])
def test_a_cache_for_a_dropout_that_keeps_all(place: str) -> None:
    body, function = _RANDOM_BODIES[place]
    model = _dropout_model(body.replace("yes", "no"), function)
    session = onward.InferenceSession(model, onward.SessionOptions(result_cache_bytes=1000))
    feeds = {"x": np.ones(4, np.float32), "training": np.array(True)}
    for _ in range(2):
        assert session.run(None, feeds)[0].tolist() == [1] * 4
    assert session.cache is not None and session.cache.hits == 1


@pytest.mark.parametrize("model", [mlp, sandwich])
def test_terminate_ends_a_run(model: Any) -> None:
    run_options = onward.RunOptions()
    run_options.terminate = True
    session = onward.InferenceSession(model(), onward.SessionOptions(log_severity_level=4))
    with pytest.raises(onward.OnwardError, match=r"ended by RunOptions\.terminate"):
        session.run(None, {"x": X}, run_options)
    run_options.terminate = False
    session.run(None, {"x": X}, run_options)


def test_terminate_ends_a_loop_that_is_under_way() -> None:
    from onnx import parser

    endless = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 20]>
        g (float x) => (float y) {
          n = Constant <value_int = 4611686018427387904> ()
          c = Constant <value = bool {1}> ()
          y = Loop (n, c, x) <body = b (int64 i, bool k, float a) => (bool l, float d) {
            l = Identity (k)
            d = Add (a, a)
          }>
        }
        """
    )
    session = onward.InferenceSession(endless, onward.SessionOptions(log_severity_level=4))
    options = onward.RunOptions()
    timer = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(onward.OnwardError):
        session.run(None, {"x": np.float32(1)}, options)


def test_a_trusted_model_may_have_its_external_data_opened_by_path(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", np.arange(4096, dtype=np.float32).reshape(64, 64))
    model = op.model(y=op.Gather(w, op.input("i", "int64", (2,))))
    ir.save(model, tmp_path / "m.onnx", external_data="m.data")
    feeds = {"i": np.array([1, 3])}
    (expected,) = onward.InferenceSession(tmp_path / "m.onnx").run(None, feeds)
    options = onward.SessionOptions(limits=onward.ModelLimits(allow_data_by_path=True))
    (result,) = onward.InferenceSession(tmp_path / "m.onnx", options).run(None, feeds)
    np.testing.assert_array_equal(result, expected)


# -- runs that fail -----------------------------------------------------------------------------

FAILING = """
import sys
import numpy as np, onnx.parser
import onward
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> '
    'g (float[a, b] x, float[c, d] z) => (float[e, f] y) { s = Concat<axis=0>(x, z) y = Neg(s) }'
)
options = onward.SessionOptions(log_severity_level=4)
session = onward.InferenceSession(model.SerializeToString(), options)
try:
    session.run(None, {"x": np.ones((2, 3), np.float32), "z": np.ones((2, 4), np.float32)})
except onward.errors.NodeFailed as error:
    assert error.op_type == "Concat", error
else:
    raise AssertionError("it ran")
print("torch" in sys.modules)
"""


@pytest.mark.integration
def test_failing_run_does_not_load_torch() -> None:
    command = [sys.executable, "-W", "error", "-c", FAILING]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_operator_that_only_onnxruntime_fails_at_moves() -> None:
    pytest.importorskip("torch")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (bool[n, 2] x) => (bool[2] y) '
        "<int64[1] axes = {0}> { y = ReduceMax<keepdims=0>(x, axes) }"
    )
    session = onward.InferenceSession(model, onward.SessionOptions(log_severity_level=4))
    [y] = session.run(None, {"x": np.zeros((0, 2), np.bool_)})
    assert y.tolist() == [False, False] and session.get_providers() == [TORCH]


@pytest.mark.integration
def test_operator_of_no_standard_does_not_load_torch() -> None:
    code = (
        "import sys, onward\nfrom tests.models import needs\n"
        "try: onward.InferenceSession(needs('Frobnicate'))\n"
        "except onward.errors.UnsupportedModel: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr
