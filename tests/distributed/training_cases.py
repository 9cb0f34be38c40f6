"""Models, data and settings on which training on many processes is compared with one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onward import losses, optimizers
from onward.graph.builder import OpBuilder
from onward.optimizers.optimizer import Optimizer
from onward.providers.options import SessionOptions
from onward.sessions.training.session import TrainingSession

WIDTH, CLASSES = 8, 5
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": optimizers.AdamW(lr=0.01, weight_decay=0.1),
    "sgd": optimizers.SGD(lr=0.1, momentum=0.9),
    "lamb": optimizers.LAMB(lr=0.01),
    "adamw in 16 bits": optimizers.AdamW(lr=0.01, weight_decay=0.1, state_dtype="bf16"),
    "lamb in 16 bits": optimizers.LAMB(lr=0.01, state_dtype="bf16"),
    "adafactor": optimizers.Adafactor(lr=0.01),
}

Feeds = dict[str, Any]


def classifier(*, dropout: float = 0.0, batch_norm: bool = False) -> ir.Model:
    """Three layers, with BatchNormalization and Dropout if asked for."""
    op, rng = OpBuilder(18), np.random.default_rng(7)

    def weights(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, (rng.normal(size=shape) * 0.4).astype(np.float32))

    h = op.input("x", "float32", ("batch", WIDTH))
    for i in range(3):
        h = op.Add(op.MatMul(h, weights(f"w{i}", WIDTH, WIDTH)), weights(f"b{i}", WIDTH))
        if batch_norm:
            scale, shift, mean = weights(f"s{i}", WIDTH), weights(f"t{i}", WIDTH), np.zeros(WIDTH)
            moments = (mean.astype(np.float32), np.ones(WIDTH, np.float32))
            names = [op.initializer(f"{n}{i}", m) for n, m in zip(("mean", "var"), moments)]
            h = op.BatchNormalization(h, scale, shift, *names)
        h = op.Tanh(h)
        if dropout:
            h = op.Dropout(h, np.float32(dropout), np.bool_(False))
    return op.model(scores=op.MatMul(h, weights("last", WIDTH, CLASSES)))


def looped(width: int = WIDTH) -> ir.Model:
    """A layer that a loop applies twice: the gradients of its two tensors are outputs of one node.

    float64, in which losses and factors are, too.
    """
    rng = np.random.default_rng(7)
    nodes = [
        helper.make_node("Loop", ["count", "", "x"], ["h"], body=_layer(width)),
        helper.make_node("MatMul", ["h", "last"], ["scores"]),
    ]
    shapes = {"w": (width, width), "b": (width,), "last": (width, CLASSES)}
    weights = [numpy_helper.from_array(rng.normal(size=s), n) for n, s in shapes.items()]
    weights.append(numpy_helper.from_array(np.array(2), "count"))
    ends = [("x", ["batch", width]), ("scores", ["batch", CLASSES])]
    x, scores = (helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in ends)
    graph = helper.make_graph(nodes, "looped", [x], [scores], weights)
    imports = [helper.make_opsetid("", 18)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))


def _layer(width: int) -> onnx.GraphProto:
    nodes = [
        helper.make_node("MatMul", ["h_in", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_out"]),
        helper.make_node("Identity", ["on_in"], ["on_out"]),
    ]
    on = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("on_in", "on_out")]
    hidden = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", width])
        for name in ("h_in", "h_out")
    ]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    return helper.make_graph(nodes, "layer", [i, on[0], hidden[0]], [on[1], hidden[1]])


def batches(count: int, rows: int, *, ignored: int | None = None, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        labels = rng.integers(0, CLASSES, rows)
        if ignored is not None:
            labels[rng.random(rows) < 0.4] = ignored
        found.append({"x": rng.normal(size=(rows, WIDTH)).astype(np.float32), "labels": labels})
    return found


def part(feeds: Mapping[str, Any], rank: int, sizes: Sequence[int]) -> Feeds:
    """The rows of a batch that one process has."""
    start = sum(sizes[:rank])
    return {name: array[start : start + sizes[rank]] for name, array in feeds.items()}


def open_session(case: Mapping[str, Any], **more: Any) -> TrainingSession:
    """A session on one thread; `case` has the model's and the training's settings."""
    threads = SessionOptions(intra_op_num_threads=1, inter_op_num_threads=1)
    model, reduction = case.get("model", {}), case.get("reduction", "mean")
    return TrainingSession(
        looped() if model == "looped" else classifier(**model),
        losses.CrossEntropy(output="scores", ignore_index=case.get("ignored"), reduction=reduction),
        OPTIMIZERS[case.get("optimizer", "adamw")],
        {**case.get("options", {}), **more.pop("options", {})},
        sess_options=threads,
        providers=case.get("providers"),
        **more,
    )


def trained(session: TrainingSession, feeds: Sequence[Feeds]) -> tuple[list[float], dict[str, Any]]:
    """The losses of the batches, and the weights after them."""
    found = [float(session.step(each)["loss"]) for each in feeds]
    tensors = {**session.parameters, **session.statistics}
    return found, {name: np.array(tensor) for name, tensor in tensors.items()}
