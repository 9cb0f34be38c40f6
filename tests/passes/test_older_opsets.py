"""Artifacts are converted to the opset of their model, with the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward import OpBuilder
from onward.errors import UnsupportedModel
from onward.losses import CrossEntropy
from onward.optimizers import Adafactor
from onward.passes.older_opsets import convert_to_opset
from onward.training import onnxblock
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from onward.training.onnxblock import optim
from tests.training.nets import Loop, convolutional, mlp, opened

KINDS = ("training_model", "eval_model", "optimizer_model")


def opsets(folder: Path) -> list[int]:
    models = [onnx.load(folder / f"{kind}.onnx") for kind in KINDS]
    return [o.version for model in models for o in model.opset_import if not o.domain]


@pytest.mark.sampled("opset")
@pytest.mark.sampled("loss")
@pytest.mark.parametrize("opset", [13, 14, 15, 16, 17, 18, 21, 23, 26])
@pytest.mark.parametrize("loss", list(LossType))
def test_artifacts_are_in_the_opset_of_their_model(
    tmp_path: Path, opset: int, loss: LossType
) -> None:
    model = mlp(opset=opset)
    generate_artifacts(model, loss=loss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    assert opsets(tmp_path) == [opset] * 3
    for kind in KINDS:
        onnx.checker.check_model(onnx.load(tmp_path / f"{kind}.onnx"), full_check=True)


def test_loss_keeps_the_opset(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(opset=14), loss=CrossEntropy(), optimizer=OptimType.SGD, artifact_directory=tmp_path
    )
    assert opsets(tmp_path) == [14] * 3


def test_optimizer_with_reductions_is_converted(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(opset=14), loss=LossType.MSELoss, optimizer=Adafactor(), artifact_directory=tmp_path
    )
    assert opsets(tmp_path) == [14] * 3


def test_clipping_uses_the_opset_that_it_needs(tmp_path: Path) -> None:
    clipped = optim.AdamW(clip_grad=optim.ClipGradNorm(0.1))
    generate_artifacts(
        mlp(opset=14), loss=LossType.MSELoss, optimizer=clipped, artifact_directory=tmp_path
    )
    assert opsets(tmp_path) == [14, 14, 18]  # SequenceMap came in opset 17
    opened(tmp_path / "optimizer_model.onnx")


def test_opset_of_an_optimizer_comes_from_its_base() -> None:
    parameters: Any = [onnx.numpy_helper.from_array(np.zeros(2, np.float32), "w")], []
    for asked, found in ((None, 13), (14, 14), (21, 21)):
        block = optim.SGD()
        with onnxblock.empty_base(asked):
            block(parameters)
        versions = {o.domain: o.version for o in block.to_model_proto().opset_import}
        assert versions[""] == found


@pytest.mark.sampled()
@pytest.mark.parametrize("loss", list(LossType))
def test_every_opset_trains_the_same(tmp_path: Path, loss: LossType) -> None:
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(6, 4)).astype("f4"), rng.normal(size=(6, 3)).astype("f4")
    classes = loss is LossType.CrossEntropyLoss
    feeds = {"input": x, **({"labels": target.argmax(1)} if classes else {"target": target})}
    found = []
    for opset in (13, 15, 17, 23):
        where = tmp_path / str(opset)
        model = mlp(opset=opset)
        generate_artifacts(model, loss=loss, optimizer=OptimType.AdamW, artifact_directory=where)
        loop = Loop(where)
        losses = []
        for _ in range(3):
            losses.append(loop.loss(feeds))
            loop.update(0.1)
        found.append(losses)
    assert found[1:] == found[:1] * 3


def test_model_that_does_not_fit_stays_in_the_oldest_opset_that_fits(tmp_path: Path) -> None:
    op = OpBuilder(opset=13)
    indices = op.input("indices", "int64", (5,))
    model = op.model(y=op.Gather(op.initializer("table", np.ones((4, 3), np.float32)), indices))
    generate_artifacts(
        model, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path
    )
    training, evaluation, optimizer = opsets(tmp_path)
    assert training > 13  # rows that are read twice are added up
    assert (evaluation, optimizer) == (13, 13)
    opened(tmp_path / "training_model.onnx")


def test_batch_norm_of_opset_13_has_no_mode_there(tmp_path: Path) -> None:
    model = convolutional(training_mode=0)
    del model.graph.node[1].attribute[:]
    model.opset_import[0].version = 13
    generate_artifacts(
        model,
        ["fc.weight"],
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )
    assert opsets(tmp_path) == [13] * 3
    for kind in KINDS:
        onnx.checker.check_model(onnx.load(tmp_path / f"{kind}.onnx"), full_check=True)


def build(operator: str, *inputs: Any, shape: Any = ("a", "b", 4), **attributes: Any) -> ir.Model:
    op = OpBuilder(opset=onnx.defs.onnx_opset_version())
    x = op.input("x", "float32", shape)
    return op.model(y=getattr(op, operator)(x, *inputs, **attributes))


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Shape", [], {"start": 1}),
        ("Shape", [], {"start": -2, "end": -1}),
        ("Shape", [], {"end": 9}),
        ("ReduceMean", [[-1]], {"keepdims": 0}),
        ("ReduceMean", [], {}),
        ("ReduceMax", [[0, 2]], {}),
        ("ReduceLogSumExp", [[1]], {"keepdims": 1}),
    ],
)
def test_older_form_has_the_same_outputs(
    operator: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    old, new = (convert_to_opset(build(operator, *inputs, **attributes), w) for w in (13, 18))
    assert (old.opset_imports[""], new.opset_imports[""]) == (13, 18)
    onnx.checker.check_model(ir.to_proto(old), full_check=True)
    np.testing.assert_array_equal(
        opened(_stock(old)).run(None, {"x": x})[0], opened(_stock(new)).run(None, {"x": x})[0]
    )


def _stock(model: ir.Model) -> onnx.ModelProto:
    model.ir_version = 8
    return ir.to_proto(model)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("ReduceMean", [], {"noop_with_empty_axes": 1}),
        ("ReduceMean", [np.zeros(0, np.int64)], {}),
        ("Gelu", [], {}),
    ],
)
def test_nodes_without_an_older_form_are_unchanged(
    operator: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    model = convert_to_opset(build(operator, *inputs, **attributes), 14)
    assert model.opset_imports[""] in (18, 20)
    assert [node.op_type for node in model.graph] == [operator]


def test_scatter_add_is_converted_only_without_collisions() -> None:
    for count, opset in ((1, 13), (2, 16)):
        op = OpBuilder(opset=18)
        x = op.input("x", "float32", (2, 3))
        indices = op.input("indices", "int64", (2, count))
        updates = op.input("updates", "float32", (2, count))
        y = op.ScatterElements(x, indices, updates, axis=1, reduction="add")
        model = convert_to_opset(op.model(y=y), 13)
        assert model.opset_imports[""] == opset
        feeds = {"x": np.ones((2, 3), "f4"), "indices": np.full((2, count), -1)}
        feeds["updates"] = np.full((2, count), 2, "f4")
        (found,) = opened(_stock(model)).run(None, feeds)
        np.testing.assert_array_equal(found, [[1, 1, 1 + 2 * count]] * 2)


def test_operators_that_onnxruntime_lacks_in_opset_22_stay_before_it() -> None:
    model = convert_to_opset(build("RandomNormalLike"), 23)
    assert model.opset_imports[""] == 21
    opened(_stock(model))


def test_too_new_model_is_refused() -> None:
    op = OpBuilder(opset=28)
    x = op.input("x", "float32", (2,))
    with pytest.raises(UnsupportedModel, match="SwiGLU of opset 28 does not fit opset 26"):
        convert_to_opset(op.model(y=op.SwiGLU(x, x)), 14)
