"""Weights that are Constant nodes are trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.sessions.training.session import TrainingSession
from onward.training.api import CheckpointState
from onward.training.artifacts import LossType, generate_artifacts


def constants(**tensors: object) -> str:
    """Constant nodes, as text."""
    lines = []
    for name, array in tensors.items():
        held = np.asarray(array, np.float32)
        sizes = ", ".join(map(str, held.shape))
        numbers = ", ".join(f"{float(number)!r}" for number in held.flat)
        kind = f"float[{sizes}]" if held.shape else "float"
        lines.append(f"{name} = Constant<value = {kind} {{{numbers}}}>()")
    return " ".join(lines)


def parsed(
    body: str, shape: str = "n, 4", producer: str = "", weights: str = ""
) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18], producer_name: "{producer}">
        g (float[{shape}] x) => (float[] y) {weights} {{ {body} }}"""
    )


def trained(model: onnx.ModelProto, **options: object) -> list[str]:
    return sorted(
        TrainingSession(model, onward.losses.Output("y"), SGD(lr=0.1), options).parameters
    )


W, ROOT = np.linspace(-1, 1, 12).reshape(4, 3), "d = ReduceMean<keepdims=0>(h) y = Mul(d, d)"
IMAGE = np.linspace(-1, 1, 36).reshape(2, 2, 3, 3)


@pytest.mark.parametrize(
    ("tensors", "body", "shape", "names"),
    [
        ({"w": W, "b": [1, 2, 3]}, "m = MatMul(x, w) h = Add(m, b)", "n, 4", ["b", "w"]),
        ({"w": W[:, :1], "b": [1]}, "m = MatMul(x, w) h = Add(b, m)", "n, 4", ["b", "w"]),
        ({"w": W, "three": [3]}, "m = MatMul(x, w) h = Add(m, three)", "n, 4", ["w"]),
        ({"w": W, "b": [1, 2, 3]}, "h = Gemm(x, w, b)", "n, 4", ["b", "w"]),
        (
            {"w": IMAGE, "b": [[[[1]], [[2]]]], "mean": [[[[1]], [[2]]]]},
            "c = Sub(x, mean) m = Conv(c, w) h = Add(m, b)",
            "n, 2, 5, 5",
            ["b", "w"],
        ),
        (
            {"w": IMAGE, "b": [1, 2]},
            "s = Constant<value_ints = [1, 2, 1, 1]>() r = Reshape(b, s) m = Conv(x, w) "
            "h = Add(m, r)",
            "n, 2, 5, 5",
            ["b", "w"],
        ),
        (
            {"s": [1, 2, 3, 4], "b": [1, 2, 3, 4], "eps": 1e-5, "two": 2},
            "c = ReduceMean<keepdims=1>(x) e = Sub(x, c) q = Pow(e, two) v = ReduceMean(q) "
            "z = Add(v, eps) r = Sqrt(z) f = Div(e, r) g = Mul(f, s) h = Add(g, b)",
            "n, 4",
            ["b", "s"],
        ),
        (
            {"scale": [1, 2, 3, 4], "b": [1, 2, 3, 4], "m": [0, 0, 0, 0], "v": [1, 1, 1, 1]},
            "h = BatchNormalization(x, scale, b, m, v)",
            "n, 4",
            ["b", "scale"],
        ),
        ({"slope": [0.1, 0.2, 0.3, 0.4]}, "h = PRelu(x, slope)", "n, 4", ["slope"]),
        (
            {"w": IMAGE, "scales": [1, 1, 2, 2]},
            'm = Conv(x, w) h = Resize<mode = "linear">(m, , scales)',
            "n, 2, 5, 5",
            ["w"],
        ),
    ],
    ids=[
        "bias",
        "bias of one",
        "x + 3",
        "Gemm",
        "Conv",
        "reshaped",
        "norm",
        "BN",
        "PRelu",
        "Resize",
    ],
)
def test_constants_that_are_read_as_weights_are_trained(
    tensors: dict[str, object], body: str, shape: str, names: list[str]
) -> None:
    assert trained(parsed(f"{constants(**tensors)} {body} {ROOT}", shape)) == names


PRODUCT = f"{constants(w=W, half=0.5)} m = MatMul(x, w) h = Mul(m, half) {ROOT}"


def test_any_float_constant_is_trained_if_it_is_named() -> None:
    assert trained(parsed(PRODUCT)) == ["w"]
    assert trained(parsed(PRODUCT), trainable=["half"]) == ["half"]
    assert trained(parsed(PRODUCT), trainable=["half", "w"]) == ["half", "w"]
    with pytest.raises(OptionError, match="frozen: 'hald' matches no weight of the model"):
        trained(parsed(PRODUCT), frozen=["hald"])


def test_constants_of_torchs_programs_are_no_weights() -> None:
    body = f"{constants(c=W)} m = MatMul(x, c) h = Add(m, bias) {ROOT}"
    weights = "<float[3] bias = {1, 2, 3}>"
    assert trained(parsed(body, weights=weights)) == ["bias", "c"]
    assert trained(parsed(body, producer="pytorch", weights=weights)) == ["bias"]
    assert trained(parsed(PRODUCT, producer="pytorch")) == ["w"]  # it has no other weights


def test_paddles_parameters_are_told_by_their_names() -> None:
    body = "m = MatMul(x, w) s = Mul(scale, m) h = Add(s, three)"
    model = parsed(f"{constants(w=W, scale=[2], three=[3])} {body} {ROOT}")
    names = {"scale": "affine_0.w_0", "w": "linear_0.w_0", "three": "p2o.helper.constant.2"}
    for node in model.graph.node:
        for names_of in (node.input, node.output):
            names_of[:] = [names.get(name, name) for name in names_of]
    assert trained(model) == ["affine_0.w_0", "linear_0.w_0"]


def regression() -> onnx.ModelProto:
    model = parsed(f"{constants(w=W, b=[1, 2, 3])} m = MatMul(x, w) y = Add(m, b)")
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])
    )
    return model


X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
FEEDS = {"x": X, "target": np.ones((5, 3), np.float32)}


def test_trained_constants_are_exported_and_come_back_from_checkpoints(tmp_path: Path) -> None:
    session = TrainingSession(regression(), MSE(), SGD(lr=0.1))
    first = session.step(FEEDS)["loss"]
    session.save(tmp_path / "checkpoint")
    session.export(tmp_path / "trained.onnx")
    [y] = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": X})
    np.testing.assert_allclose(y, session.predict({"x": X})["y"], rtol=1e-6)
    assert onnx.load(tmp_path / "trained.onnx").opset_import[0].version == 18
    other = TrainingSession(regression(), MSE(), SGD(lr=0.1))
    other.load(tmp_path / "checkpoint")
    assert session.step(FEEDS)["loss"] == other.step(FEEDS)["loss"] < first


@pytest.mark.parametrize("asked", [None, ["w", "b"]])
def test_artifacts_train_constants(asked: list[str] | None, tmp_path: Path) -> None:
    generate_artifacts(
        regression(), requires_grad=asked, loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert sorted(name for name, _ in state.parameters) == ["b", "w"]
    model = onnx.load(tmp_path / "training_model.onnx")
    assert {"w", "b"} <= {value.name for value in model.graph.input}


def test_a_batch_of_size_minus_one_is_a_batch_of_any_size() -> None:
    model = regression()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    session = TrainingSession(model, MSE(), SGD(lr=0.1))
    for size in (5, 3):
        feeds = {name: array[:size] for name, array in FEEDS.items()}
        assert np.isfinite(session.step(feeds)["loss"])
