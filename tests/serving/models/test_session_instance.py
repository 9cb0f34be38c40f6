"""SessionInstance: a session's inputs and outputs in the protocol's terms, run and closed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onward.errors import FeedError, ProviderError, SessionClosed, TypeUnsupported
from onward.serving.models.open_instances import open_instances
from onward.serving.models.session_instance import SessionInstance, open_session_instances
from onward.serving.requests import TensorSpec
from onward.serving.settings import ModelSettings
from onward.sessions.inference import InferenceSession
from tests.serving.small_models import (
    default_model,
    scale_model,
    typed_model,
    write_model,
    zip_map_model,
)

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_the_signature_of_a_session() -> None:
    instance = SessionInstance(InferenceSession(scale_model(metadata={"a": "b"})))
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, 4), ("batch", ""))]
    assert [spec.name for spec in instance.outputs] == ["y"]
    assert instance.metadata == {"a": "b"}
    instance.close()


def test_initializers_that_are_inputs_too_are_optional() -> None:
    instance = SessionInstance(InferenceSession(default_model()))
    assert instance.inputs == [
        TensorSpec("x", "FP32", (-1, 4), ("batch", "")),
        TensorSpec("w", "FP32", (4, 2), ("", ""), is_optional=True, has_default=True),
        TensorSpec("factor", "FP32", (), (), is_optional=True, has_default=True),
    ]
    doubled = instance.run({"x": X})["y"]
    halved = instance.run({"x": X, "factor": np.array(1, np.float32)})["y"]
    np.testing.assert_array_equal(doubled, 2 * halved)
    instance.close()


def test_initializers_are_constants_in_files_of_ir_version_3() -> None:
    instance = SessionInstance(InferenceSession(default_model(ir_version=3)))
    assert [spec.name for spec in instance.inputs] == ["x"]
    instance.close()


@pytest.mark.parametrize(
    ("onnx_type", "datatype"),
    [
        (TensorProto.STRING, "BYTES"), (TensorProto.BFLOAT16, "BF16"), (TensorProto.BOOL, "BOOL"),
        (TensorProto.FLOAT16, "FP16"), (TensorProto.DOUBLE, "FP64"), (TensorProto.UINT16, "UINT16"),
        (TensorProto.INT64, "INT64"), (TensorProto.INT8, "INT8"),
    ],
)  # fmt: skip
def test_datatypes(onnx_type: int, datatype: str) -> None:
    kind = helper.make_tensor_type_proto(onnx_type, [None, 2])
    instance = SessionInstance(InferenceSession(typed_model(kind)))
    assert instance.inputs == [TensorSpec("x", datatype, (-1, 2), ("", ""))]
    instance.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (helper.make_tensor_type_proto(TensorProto.INT4, [2]), "'x' is tensor.int4.*\nadd a Cast"),
        (helper.make_tensor_type_proto(TensorProto.FLOAT8E4M3FN, [2]), "tensor.float8e4m3fn"),
        (
            helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
            "'x' is seq.tensor.float.., for which .* has no datatype\nserve a model whose",
        ),
    ],
)
def test_types_that_the_protocol_lacks_are_refused(kind: onnx.TypeProto, text: str) -> None:
    with pytest.raises(TypeUnsupported, match=text):
        SessionInstance(InferenceSession(typed_model(kind)))


def loop_model() -> bytes:
    """y = 1 negated as often as the input says."""
    trips = helper.make_tensor_value_info("trips", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["a"], ["b"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, []),
        ],
    )
    start = [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])]
    node = helper.make_node("Loop", ["trips", "", "one"], ["y"], body=body)
    graph = helper.make_graph([node], "g", [trips], [y], start)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def test_a_model_with_a_loop_does_not_run_in_the_thread_of_the_event_loop(tmp_path: Path) -> None:
    for content, is_quick in ((loop_model(), False), (scale_model(), True)):
        path = write_model(tmp_path / "m.onnx", content)
        [instance] = open_session_instances(path, ModelSettings(), 1)
        assert instance.is_computation is is_quick
        instance.close()


@pytest.mark.parametrize("count", [1, 2])
def test_the_run_of_a_loop_can_be_interrupted(
    tmp_path: Path, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path / "m.onnx", loop_model())
    instance, *others = open_session_instances(path, ModelSettings(), count)
    errors: list[Exception] = []

    def run() -> None:
        try:
            instance.run({"trips": np.array(1 << 62)})
        except ProviderError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        instance.interrupt()
        thread.join(0.01)
    assert "ended by RunOptions.terminate" in str(errors[0])
    assert instance.run({"trips": np.array(3)})["y"] == -1
    assert "terminate" not in capfd.readouterr().err  # the engine reports no error
    for each in (instance, *others):
        each.close()


def test_runs_give_outputs_by_name() -> None:
    instance = SessionInstance(InferenceSession(scale_model()))
    np.testing.assert_array_equal(instance.run({"x": X})["y"], 2 * X)
    assert list(instance.run({"x": X}, ["y"])) == ["y"]
    with pytest.raises(FeedError, match="input 'x' takes shape"):
        instance.run({"x": X[:, :3]})
    threads = [threading.Thread(target=instance.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(SessionClosed):
        instance.run({"x": X})


@pytest.mark.parametrize("classes", [["b", "a"], [10, 9]])
def test_the_maps_of_a_classifier_are_a_tensor(classes: list[str] | list[int]) -> None:
    instance = SessionInstance(InferenceSession(zip_map_model(classes)))
    x = np.array([[1, 2], [3, 4]], np.float32)
    assert instance.run({"x": x})["scores"].tolist() == [[2, 1], [4, 3]]  # sorted classes
    assert instance.run({"x": x[:0]}, ["scores"])["scores"].shape[0] == 0
    instance.close()


def test_runs_of_new_shapes_compile_on_engines_that_do() -> None:
    found: list[bool] = []

    class Engine(InferenceSession):
        """onnxruntime on the CPU, which stands in for TensorRT."""

        def get_providers(self) -> list[str]:
            return ["TensorrtExecutionProvider", "CPUExecutionProvider"]

        def run(self, *arguments: Any) -> Any:
            found.append(instance.is_compiling)
            return super().run(*arguments)

    instance = SessionInstance(Engine(scale_model()))
    assert not instance.is_computation  # minutes in the loop's thread
    for x in (X, X, np.concatenate([X, X])):
        np.testing.assert_array_equal(instance.run({"x": x})["y"], 2 * x)
    assert found == [True, False, True]
    assert not instance.is_compiling
    instance.close()


def test_a_session_of_the_user_stays_open() -> None:
    session = InferenceSession(scale_model())
    SessionInstance(session, owned=False).close()
    assert session.run(None, {"x": X})
    session.close()


def test_instances_share_a_session(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx")
    first, second = open_session_instances(path, ModelSettings(threads=2), 2)
    first.close()
    first.close()
    np.testing.assert_array_equal(second.run({"x": X})["y"], 2 * X)
    second.close()
    with pytest.raises(SessionClosed):
        second.run({"x": X})


def test_settings_say_how_instances_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.onnx")

    def choose(path: Path, settings: ModelSettings) -> ModelSettings:
        return settings.model_copy(update={"instances": 3, "providers": None})

    monkeypatch.setattr("onward.serving.models.open_instances.choose_instances", choose)
    instances, settings = open_instances(path, ModelSettings(instances="auto"), "m", "1")
    assert len(instances) == 3 and settings.instances == 3
    for each in instances:
        each.close()
    instances, _ = open_instances(path, ModelSettings(workers=2), "m", "7")
    assert [type(each).__name__ for each in instances] == ["WorkerInstance"] * 2
    for each in instances:
        each.close()
