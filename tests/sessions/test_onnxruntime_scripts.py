"""Scripts of onnxruntime's users: `import onward as ort` gives what onnxruntime gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import onnxruntime
import pytest

import onward
from onward.errors import OptionError, WeightsError
from tests.models import mlp, serialized

CPU = ["CPUExecutionProvider"]
ENGINES = {*CPU, "TorchExecutionProvider", "ReferenceExecutionProvider"}
PROVIDERS = [name for name in onward.get_available_providers() if name in ENGINES]


def parsed(signature: str, body: str) -> bytes:
    text = f'<ir_version: 10, opset_import: ["" : 21]> g {signature} {{ {body} }}'
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


NEG = parsed("(float[n] x) => (float[n] y)", "y = Neg(x)")
FEEDS = {"x": np.arange(3, dtype=np.float32)}
Script = Callable[[Any], Any]
SCRIPTS: list[Script] = []


def script(run: Script) -> Script:
    SCRIPTS.append(run)
    return run


@script
def options(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(NEG, options, providers=CPU)
    return session.run(None, FEEDS), options.get_session_config_entry(
        "session.intra_op.allow_spinning"
    )


@script
def signature(ort: Any) -> Any:
    session = ort.InferenceSession(NEG, providers=CPU)
    args = [*session.get_inputs(), *session.get_outputs(), *session.get_overridable_initializers()]
    return [(arg.name, arg.shape, arg.type) for arg in args]


@script
def metadata(ort: Any) -> Any:
    model = onnx.load_from_string(NEG)
    model.producer_name = "me"
    onnx.helper.set_model_props(model, {"a": "b"})
    meta = ort.InferenceSession(model.SerializeToString(), providers=CPU).get_modelmeta()
    return meta.producer_name, meta.custom_metadata_map, meta.graph_name, meta.version


@script
def bound_arrays(ort: Any) -> Any:
    session = ort.InferenceSession(NEG, providers=CPU)
    binding = session.io_binding()
    binding.bind_cpu_input("x", FEEDS["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu(), binding.get_outputs()[0].numpy()


@script
def bound_addresses(ort: Any) -> Any:
    session = ort.InferenceSession(NEG, providers=CPU)
    x = ort.OrtValue.ortvalue_from_numpy(FEEDS["x"], "cpu", 0)
    y = ort.OrtValue.ortvalue_from_shape_and_type([3], np.float32, "cpu", 0)
    binding = ort.IOBinding(session)
    binding.bind_input("x", x.device_name(), 0, np.float32, x.shape(), x.data_ptr())
    binding.bind_output("y", "cpu", 0, np.float32, y.shape(), y.data_ptr())
    session.run_with_iobinding(binding)
    return y.numpy()


@script
def ort_values(ort: Any) -> Any:
    session = ort.InferenceSession(NEG, providers=CPU)
    x = ort.OrtValue.ortvalue_from_numpy(FEEDS["x"])
    [y] = session.run_with_ort_values(["y"], {"x": x})
    return y.numpy(), y.data_type(), y.is_tensor(), y.shape()


@script
def profile(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = "trace"
    session = ort.InferenceSession(NEG, options, providers=CPU)
    session.run(None, FEEDS)
    path = Path(session.end_profiling())
    events = json.loads(path.read_text())
    return path.name.startswith("trace"), "model_run" in {event["name"] for event in events}


@script
def provider_pairs(ort: Any) -> Any:
    session = ort.InferenceSession(NEG, providers=[("CPUExecutionProvider", {})])
    other = ort.InferenceSession(NEG, providers=CPU, provider_options=[{}])
    other.set_providers(CPU, [{}])
    return session.get_providers(), other.get_provider_options().keys()


@script
def halves(ort: Any) -> Any:
    model = parsed("(float16[n] x) => (float16[n] y)", "y = Neg(x)")
    session = ort.InferenceSession(model, providers=CPU)
    return session.run(None, {"x": FEEDS["x"].astype(np.float16)})


@script
def strings(ort: Any) -> Any:
    model = parsed("(string[n] x) => (string[n] y)", "y = Identity(x)")
    session = ort.InferenceSession(model, providers=CPU)
    return session.run(None, {"x": np.array(["a", "bc"], object)})[0].tolist()


@script
def sequences(ort: Any) -> Any:
    model = parsed("(seq(float[n]) x) => (float[m] y)", "y = ConcatFromSequence<axis = 0>(x)")
    session = ort.InferenceSession(model, providers=CPU)
    return session.get_inputs()[0].type, session.run(None, {"x": [FEEDS["x"], FEEDS["x"]]})


@script
def background(ort: Any) -> Any:
    done, got = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        got.append((results, user_data, error))
        done.set()

    ort.InferenceSession(NEG, providers=CPU).run_async(["y"], FEEDS, callback, "mine")
    return done.wait(60), got


@script
def run_options(ort: Any) -> Any:
    options = ort.RunOptions()
    options.logid, options.log_severity_level = "mine", 3
    options.only_execute_path_to_fetches = True
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session = ort.InferenceSession(NEG, providers=CPU)
    return session.run(["y"], FEEDS, options), options.logid


@script
def terminated(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(Exception, match=r"(?i)terminate"):
        ort.InferenceSession(NEG, providers=CPU).run(None, FEEDS, options)


@script
def fixed_dimensions(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    return ort.InferenceSession(NEG, options, providers=CPU).get_inputs()[0].shape


@script
def optimized_model(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = "optimized.onnx"
    ort.InferenceSession(NEG, options, providers=CPU)
    return [node.op_type for node in onnx.load("optimized.onnx").graph.node]


@script
def missing_library(ort: Any) -> Any:
    with pytest.raises(Exception, match=r"/no/such\.so"):
        ort.SessionOptions().register_custom_ops_library("/no/such.so")


@script
def own_class(ort: Any) -> Any:
    class Own(ort.InferenceSession):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.calls = 0

        def __call__(self, **feeds: Any) -> Any:
            self.calls += 1
            return self.run(None, feeds)

    own = Own(NEG, providers=CPU)
    return own(**FEEDS), own.calls


@script
def module_names(ort: Any) -> Any:
    ort.set_default_logger_severity(3)
    ort.set_default_logger_verbosity(0)
    ort.set_seed(1)
    ort.disable_telemetry_events()
    device = ort.OrtDevice.make("cpu", 0)
    ort.set_default_logger_severity(2)
    return ort.get_device(), device.device_id(), ort.get_version_string(), ort.get_build_info()


@script
def sparse_tensors(ort: Any) -> Any:
    size, values = np.array([3, 3], np.int64), np.array([1.0], np.float32)
    where, device = np.array([4], np.int64), ort.OrtDevice.make("cpu", 0)
    tensor = ort.SparseTensor.sparse_coo_from_numpy(size, values, where, device)
    return str(tensor.format()), tensor.values()


@script
def keywords(ort: Any) -> Any:
    session = ort.InferenceSession(
        path_or_bytes=NEG, sess_options=None, providers=CPU, provider_options=None,
        disabled_optimizers=["ConstantFolding"], enable_fallback=0, read_config_from_model=0,
    )  # fmt: skip
    return session.run(output_names=None, input_feed=FEEDS, run_options=None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_matches_onnxruntime(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.testing.assert_equal(script(onward), script(onnxruntime))


def adds_weight() -> onnx.ModelProto:
    """y = x + w, with w = 1, which a feed or an adapter may replace."""
    return onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        adds (float[2] x, float[2] w = {1, 1}) => (float[2] y) { y = Add(x, w) }""")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_initializer_of_the_options_replaces_the_models(provider: str) -> None:
    options = onward.SessionOptions()
    options.add_initializer("w", onward.OrtValue.ortvalue_from_numpy(np.full(2, 5, np.float32)))
    options.add_initializer("other", onward.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32)))
    op = onward.OpBuilder()
    w = op.initializer("w", np.ones(2, np.float32))
    model = op.model(y=op.Add(op.input("x", "float32", (2,)), w))
    session = onward.InferenceSession(model, options, [provider])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [6, 6]


def test_an_initializer_of_the_options_that_does_not_fit_is_refused() -> None:
    options = onward.SessionOptions()
    options.add_initializer("w", onward.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32)))
    with pytest.raises(WeightsError, match=r"weight 'w' has shape \(3,\), the model \(2,\)"):
        onward.InferenceSession(adds_weight(), options, ["CPUExecutionProvider"])


def test_a_library_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("not a library")
    for library in (str(tmp_path / "broken.so"), "libnowhere.so"):
        options = onward.SessionOptions()
        options.register_custom_ops_library(library)
        law = rf"custom operator library '{library}' cannot be loaded: .*\ngive a shared library"
        with pytest.raises(OptionError, match=law):
            onward.InferenceSession(NEG, options, providers=CPU)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_run_options_of_another_class_are_refused(provider: str) -> None:
    session = onward.InferenceSession(NEG, providers=[provider])
    law = r"run_options must be a RunOptions, not dict\nsuch as onward.RunOptions\(timeout=1.0\)"
    with pytest.raises(OptionError, match=law):
        session.run(None, FEEDS, {})
    with pytest.raises(TypeError, match=law):
        session.run_async(None, FEEDS, print, None, {})


def test_keywords_of_onnxruntimes_session_are_taken() -> None:
    session = onward.InferenceSession(
        serialized(mlp()), providers=["CPUExecutionProvider"], enable_fallback=0,
        disabled_optimizers={"ConstantFolding"}, read_config_from_model=0,
    )  # fmt: skip
    assert session.get_session_options().disabled_optimizers == ["ConstantFolding"]
    assert session.run(None, {"x": np.ones((3, 4), np.float32)})[0].shape == (3, 2)
    law = r"read_config_from_model: a model does not set the options .*\nset them in sess_options"
    with pytest.raises(OptionError, match=law):
        onward.InferenceSession(serialized(mlp()), read_config_from_model=True)


def test_onnxruntimes_own_methods_are_forwarded() -> None:
    session: Any = onward.InferenceSession(serialized(mlp()), providers=["CPUExecutionProvider"])
    assert len(session.get_input_memory_infos()) == 1
    peers = {n for n in dir(onnxruntime.InferenceSession) if not n.startswith("_")}
    assert not [name for name in peers if not hasattr(session, name)]
    other: Any = onward.InferenceSession(mlp(), providers=["ReferenceExecutionProvider"])
    with pytest.raises(AttributeError, match="get_tuning_results needs onnxruntime's own session"):
        _ = other.get_tuning_results
    with pytest.raises(AttributeError, match="no attribute 'get_input'"):
        _ = other.get_input


def test_a_lora_adapter_is_active_for_a_run(tmp_path: Path) -> None:
    adapters = onward.AdapterFormat()
    w = onward.OrtValue.ortvalue_from_numpy(np.full(2, 5, np.float32))
    adapters.set_parameters({"w": w})
    adapters.export_adapter(str(tmp_path / "w.onnx_adapter"))
    adapter = onward.LoraAdapter()
    adapter.Load(str(tmp_path / "w.onnx_adapter"))
    options, x = onward.RunOptions(), np.ones(2, np.float32)
    options.add_active_adapter(adapter)
    session = onward.InferenceSession(
        adds_weight().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert session.run(None, {"x": x})[0].tolist() == [2, 2]
    assert session.run(None, {"x": x}, options)[0].tolist() == [6, 6]
    other = onward.InferenceSession(adds_weight(), providers=["ReferenceExecutionProvider"])
    law = r"active adapters: onnxruntime does not run this model as a whole\nlist only its provid"
    with pytest.raises(OptionError, match=law):
        other.run(None, {"x": x}, options)
