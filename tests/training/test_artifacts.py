"""generate_artifacts: the files that it writes, and how a device uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onward.checkpoints import file_contents
from onward.optimizers.sgd import SGD
from onward.training import artifacts, onnxblock
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.nets import (
    MLP,
    Loop,
    convolutional,
    float_info,
    mlp,
    model_of,
    names,
    opened,
    two_outputs,
)

FILES = ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def batch(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "input": rng.normal(size=(8, 4)).astype(np.float32),
        "labels": rng.integers(0, 3, 8),
        "target": rng.normal(size=(8, 3)).astype(np.float32),
    }


# -- files -----------------------------------------------------------------------------------------


def test_four_files_are_written_into_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    generate_artifacts(
        mlp(),
        requires_grad=list(MLP),
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=folder,
    )
    assert written(folder) == FILES


def test_current_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generate_artifacts(mlp(), list(MLP), loss=LossType.MSELoss)
    assert written(tmp_path) == ["checkpoint", "eval_model.onnx", "training_model.onnx"]


def test_prefix_may_name_a_folder(tmp_path: Path) -> None:
    for prefix in ("mine_", "inner/"):
        generate_artifacts(
            mlp(), list(MLP), loss=LossType.MSELoss, artifact_directory=tmp_path, prefix=prefix
        )
    assert written(tmp_path) == [
        "inner",
        "mine_checkpoint",
        "mine_eval_model.onnx",
        "mine_training_model.onnx",
    ]
    assert "training_model.onnx" in written(tmp_path / "inner")


def test_ort_format_models_are_written_and_run(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        list(MLP),
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        artifact_directory=str(tmp_path).encode(),
        ort_format=True,
    )
    assert {name for name in written(tmp_path) if name.endswith(".ort")} == {
        "training_model.ort",
        "eval_model.ort",
        "optimizer_model.ort",
    }
    session = opened(tmp_path / "training_model.ort")
    assert json.loads(session.get_modelmeta().custom_metadata_map["onward.inputs"]) == [
        "input",
        "target",
    ]


def test_a_nominal_checkpoint_has_names_without_data(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        list(MLP),
        loss=LossType.MSELoss,
        artifact_directory=tmp_path,
        nominal_checkpoint=True,
    )
    nominal = file_contents.read(tmp_path / "nominal_checkpoint").parameters
    assert list(nominal) == list(MLP)
    assert all(stored.data is None for stored in nominal.values())
    assert file_contents.read(tmp_path / "checkpoint").parameters["fc1.bias"].data is not None


def test_model_may_be_a_path_bytes_a_proto_or_a_graph(tmp_path: Path) -> None:
    model = mlp()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    found = []
    for source in (model, str(path), path, model.SerializeToString(), ir.from_proto(model)):
        generate_artifacts(source, list(MLP), loss=LossType.MSELoss, artifact_directory=tmp_path)
        session = opened(tmp_path / "training_model.onnx")
        found.append(names(session.get_inputs()))
    assert all(each == found[0] for each in found)


def test_given_model_is_not_changed(tmp_path: Path) -> None:
    model = mlp()
    before = model.SerializeToString()
    generate_artifacts(model, list(MLP), loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("trained", [list(MLP), ["fc2.bias"]])
def test_external_weights_stay_external(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.setattr(artifacts, "_EMBEDDED_AT_MOST", 0)  # as if it had gigabytes
    monkeypatch.setattr("onward.graph.files._EMBEDDED_AT_MOST", 100)
    generate_artifacts(
        path, trained, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path
    )
    assert ("training_model.onnx.data" in written(tmp_path)) == (len(trained) == 1)
    monkeypatch.undo()
    other = tmp_path / "other"
    generate_artifacts(
        mlp(), trained, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=other
    )
    assert Loop(tmp_path).loss(batch()) == Loop(other).loss(batch())


# -- contracts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (LossType.MSELoss, ("target", "tensor(float)", ["batch", 3])),
        (LossType.L1Loss, ("target", "tensor(float)", ["batch", 3])),
        (LossType.BCEWithLogitsLoss, ("target", "tensor(float)", ["batch", 3])),
        (LossType.CrossEntropyLoss, ("labels", "tensor(int64)", ["batch"])),
    ],
)
def test_the_training_graph_keeps_its_contract(
    tmp_path: Path, loss: LossType, target: tuple[Any, ...]
) -> None:
    generate_artifacts(
        mlp(),
        requires_grad=["fc2.weight", "fc1.weight"],
        frozen_params=["fc1.bias"],
        loss=loss,
        artifact_directory=tmp_path,
        additional_output_names=["output"],
    )
    session = opened(tmp_path / "training_model.onnx")
    assert [(x.name, x.type, x.shape) for x in session.get_inputs()] == [
        ("input", "tensor(float)", ["batch", 4]),
        target,
        ("fc1.weight", "tensor(float)", [5, 4]),
        ("fc1.bias", "tensor(float)", [5]),
        ("fc2.weight", "tensor(float)", [3, 5]),
        ("fc1.weight_grad.accumulation.buffer", "tensor(float)", [5, 4]),
        ("fc2.weight_grad.accumulation.buffer", "tensor(float)", [3, 5]),
        ("lazy_reset_grad", "tensor(bool)", [1]),
    ]
    assert names(session.get_outputs())[1:] == [
        "output",
        "fc1.weight_grad.accumulation.out",
        "fc2.weight_grad.accumulation.out",
    ]
    evaluation = opened(tmp_path / "eval_model.onnx")
    assert names(evaluation.get_inputs()) == names(session.get_inputs())[:5]
    assert names(evaluation.get_outputs()) == names(session.get_outputs())[:2]
    metadata = session.get_modelmeta().custom_metadata_map
    classes = [{"name": "labels", "classes": 3, "ignored": None}] * (target[0] == "labels")
    assert json.loads(metadata.pop("onward.step"))["gradients"].keys() == {
        "fc1.weight",
        "fc2.weight",
    }
    assert {key: json.loads(value) for key, value in metadata.items()} == {
        "onward.inputs": ["input", target[0]],
        "onward.outputs": names(session.get_outputs())[:2],
        "onward.trainable": ["fc1.weight", "fc2.weight"],
        "onward.frozen": ["fc1.bias"],
        "onward.state": [],
        "onward.labels": classes,
    }
    stored = file_contents.read(tmp_path / "checkpoint").parameters
    assert {name: one.requires_grad for name, one in stored.items()} == {
        "fc1.weight": True,
        "fc2.weight": True,
        "fc1.bias": False,
    }


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (OptimType.AdamW, ["first_order_moments", "second_order_moments"]),
        (OptimType.SGD, []),
        (SGD(lr=0.1, momentum=0.9), ["momentum_buffer"]),
    ],
)
def test_the_optimizer_graph_keeps_its_contract(
    tmp_path: Path, optimizer: Any, slots: list[str]
) -> None:
    generate_artifacts(
        mlp(), list(MLP), loss=LossType.MSELoss, optimizer=optimizer, artifact_directory=tmp_path
    )
    session = opened(tmp_path / "optimizer_model.onnx")
    inputs = [(x.name, x.type) for x in session.get_inputs()]
    assert inputs[:2] == [("learning_rate", "tensor(float)"), ("step", "tensor(int64)")]
    assert [x.shape for x in session.get_inputs()][:2] == [[1], [1]]
    kept = json.loads(session.get_modelmeta().custom_metadata_map["onward.slots"])
    assert inputs[2:] == [(name, "seq(tensor(float))") for name in ("params", "gradients", *kept)]
    assert names(session.get_outputs()) == [
        "updated_flag",
        "updated_params",
        *(f"updated_{name}" for name in kept),
    ]
    assert slots == kept


def test_artifacts_are_in_an_opset_of_stock_onnxruntime(tmp_path: Path) -> None:
    newest = mlp(opset=onnx.defs.onnx_opset_version())
    newest.ir_version = onnx.IR_VERSION
    for model in (newest, mlp(opset=9)):
        generate_artifacts(
            model,
            list(MLP),
            loss=LossType.CrossEntropyLoss if model is newest else LossType.MSELoss,
            optimizer=OptimType.AdamW,
            artifact_directory=tmp_path,
        )
        loop = Loop(tmp_path)
        assert loop.evaluate(batch()) == pytest.approx(loop.loss(batch()), rel=1e-5)


def test_artifacts_have_only_onnx_operators(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        list(MLP),
        loss=LossType.BCEWithLogitsLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    for path in tmp_path.glob("*.onnx"):
        assert {node.domain for node in onnx.load(path).graph.node} == {""}


# -- which parameters ------------------------------------------------------------------------------


def trained(folder: Path) -> list[str]:
    stored = file_contents.read(folder / "checkpoint").parameters
    return [name for name, one in stored.items() if one.requires_grad]


def test_without_requires_grad_every_weight_that_is_not_frozen_is_trained(tmp_path: Path) -> None:
    model = convolutional(dropout=True)
    generate_artifacts(
        model,
        frozen_params=["conv.weight"],
        loss=LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    assert trained(tmp_path) == ["bn.weight", "bn.bias", "fc.weight", "fc.bias"]


def test_constants_of_the_loss_are_never_trained(tmp_path: Path) -> None:
    loss = onnxblock.loss.CrossEntropyLoss(weight=np.array([1, 2, 3], np.float32))
    generate_artifacts(mlp(), loss=loss, artifact_directory=tmp_path)
    assert trained(tmp_path) == list(MLP)


def test_requires_grad_and_frozen_params_may_be_sets(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        requires_grad={"fc2.bias", "fc2.weight"},
        frozen_params={"fc1.bias", "not in the model"},
        loss=LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    assert trained(tmp_path) == ["fc2.weight", "fc2.bias"]


def test_all_other_initializers_may_be_frozen(tmp_path: Path) -> None:
    model = convolutional(dropout=True)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 64]), "flat.shape"))
    flatten = next(node for node in model.graph.node if node.op_type == "Flatten")
    flatten.CopyFrom(helper.make_node("Reshape", ["active", "flat.shape"], ["flat"]))
    others = [name for name in names(model.graph.initializer) if not name.startswith("fc.")]
    generate_artifacts(
        model,
        ["fc.weight", "fc.bias"],
        others,
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )
    loop = Loop(tmp_path)
    fed = names(loop.training.get_inputs())
    assert "conv.weight" in fed and "ratio" in fed
    assert "flat.shape" not in fed and "on" not in fed  # constants, as before
    assert set(others) <= set(loop.parameters)
    image = np.ones((2, 1, 6, 6), np.float32)
    feeds = {"image": image, "labels": np.array([0, 1])}
    loop.loss(feeds)
    loop.evaluate(feeds)


def test_a_model_without_parameters_still_has_an_eval_model(tmp_path: Path) -> None:
    x, y = float_info("x", ["batch", 3]), float_info("y", ["batch", 3])
    node = helper.make_node("Dropout", ["x", "ratio", "on"], ["y"])
    weights = {"ratio": np.array(0.5, np.float32), "on": np.array(True)}
    generate_artifacts(
        model_of([node], [x], [y], weights),
        loss=LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    evaluation = opened(tmp_path / "eval_model.onnx")
    scores = np.array([[0.0, 0.0, 50.0]], np.float32)
    (loss,) = evaluation.run(None, {"x": scores, "labels": np.array([2])})
    assert loss == 0  # nothing was dropped


def test_the_first_output_is_the_loss_if_none_is_given(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    inputs, outputs = [float_info("x", [2])], [float_info("loss", []), float_info("y", [2])]
    model = model_of(nodes, inputs, outputs, {"w": np.ones(2, np.float32)})
    generate_artifacts(model, ["w"], artifact_directory=tmp_path, optimizer=OptimType.SGD)
    loop = Loop(tmp_path)
    assert names(loop.training.get_outputs()) == ["loss", "y", "w_grad.accumulation.out"]
    assert loop.loss({"x": np.array([3, 4], np.float32)}) == 7
    assert loop.gradients["w"].tolist() == [3, 4]


def test_loss_reads_loss_input_names(tmp_path: Path) -> None:
    generate_artifacts(
        two_outputs(),
        ["wb"],
        loss=LossType.MSELoss,
        artifact_directory=tmp_path,
        loss_input_names=["b"],
        additional_output_names=["a", "b"],
    )
    session = opened(tmp_path / "training_model.onnx")
    assert names(session.get_outputs())[1:] == ["a", "b", "wb_grad.accumulation.out"]


def test_inner_value_may_be_an_output_without_repetition(tmp_path: Path) -> None:
    class Loss(onnxblock.Block):
        def __init__(self) -> None:
            self.loss = onnxblock.loss.MSELoss()  # never calls Block's constructor

        def build(self, output_name: str) -> tuple[str, str]:
            return self.loss(output_name), output_name

    generate_artifacts(
        mlp(),
        list(MLP),
        loss=Loss(),
        artifact_directory=tmp_path,
        additional_output_names=["output", "hidden"],
    )
    session = opened(tmp_path / "eval_model.onnx")
    assert names(session.get_outputs())[1:] == ["output", "hidden"]
