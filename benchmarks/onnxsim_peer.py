"""A training step of onnxsim (`compile_training_loop`, since 0.8), for benchmarks/training.py.

It differentiates 46 operators of static shapes into plain ONNX and runs the step, with Adam, on
onnxruntime. To measure as much as possible of the same step, models are written in operators that
it has a rule for: cross entropy by the logarithm of a softmax and one-hot targets, constants folded
beforehand, and where it refuses a model as it is, BatchNormalization by its formula and embeddings
by a vector of indices.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

INSTALL = "onnxsim is not installed and is left out: pip install 'onnxsim>=0.8'"
LEARNING_RATE = 1e-3  # Adam's default in torch and here


def is_installed() -> bool:
    return importlib.util.find_spec("onnxsim") is not None


def prepare(name: str, folder: str) -> None:
    """Write a model as onnxsim takes it, its feeds, and why it refused another form of it."""
    from backward import modules

    where, refused = Path(folder), {}
    for form in ("as it is", "rewritten"):
        module, x, labels = modules(name)
        if form == "rewritten":
            rewrite(module)
        try:
            model, targets = export(module, x, labels)
            names = [f"model.{key}" for key, _ in module.named_parameters()]
            _loop(model, names, optimized=False)
        except Exception as error:  # torch's exporter and onnxsim raise errors of many kinds
            refused[form] = one_line(error)
            continue
        (where / "onnxsim.onnx").write_bytes(model.SerializeToString())
        feeds = {model.graph.input[0].name: x.numpy(), "targets": targets}
        np.savez(where / "onnxsim.npz", **feeds)
        break
    about = {"refused": refused, "parameters": names}
    (where / "onnxsim.json").write_text(json.dumps(about))


def one_line(error: Exception) -> str:
    """The first sentence of an error, without the list of what is supported."""
    return str(error).splitlines()[0].split("; onnxsim.graph_grad differentiates")[0][:200]


def rewrite(module: Any) -> None:
    """Write BatchNorm2d and AdaptiveAvgPool2d(1) by sums, Embedding by a vector of indices."""
    import torch
    from torch import nn

    def mean(x: Any, axes: tuple[int, ...]) -> Any:
        """By a sum: ReduceMean's axes became an input in opset 18, which torch writes."""
        return x.sum(axes, keepdim=True) / math.prod(x.shape[axis] for axis in axes)

    class BatchNorm(nn.Module):
        def __init__(self, norm: nn.BatchNorm2d) -> None:
            super().__init__()
            self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

        def forward(self, x: Any) -> Any:
            w, b = self.weight.view(1, -1, 1, 1), self.bias.view(1, -1, 1, 1)
            d = x - mean(x, (0, 2, 3))
            return d * (w / torch.sqrt(mean(d * d, (0, 2, 3)) + self.eps)) + b

    class AveragePool(nn.Module):
        def forward(self, x: Any) -> Any:
            return mean(x, (2, 3))

    class Embedding(nn.Module):
        def __init__(self, table: nn.Embedding) -> None:
            super().__init__()
            self.weight = table.weight

        def forward(self, x: Any) -> Any:
            return torch.index_select(self.weight, 0, x.flatten()).view(*x.shape, -1)

    for key, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, key, BatchNorm(child))
        elif isinstance(child, nn.AdaptiveAvgPool2d):
            setattr(module, key, AveragePool())
        elif isinstance(child, nn.Embedding):
            setattr(module, key, Embedding(child))
        else:
            rewrite(child)


def export(module: Any, x: Any, labels: Any) -> tuple[Any, Any]:
    """The model with its loss, in opset 17, and its one-hot targets."""
    import onnx
    import onnx_ir as ir
    import torch
    from backward import set_training_mode
    from onnxsim.torch_training import export_torch_module_to_onnx
    from torch import nn

    from onward.passes.normalize import lift_constants, resolve_cast_like
    from onward.passes.pipelines import FOLD_SHAPES

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, x: Any, targets: Any) -> Any:
            return -(torch.log(torch.softmax(self.model(x), -1)) * targets).sum(-1).mean()

    classes = module(x).shape[-1]
    targets = nn.functional.one_hot(labels, classes).float()
    model = ir.from_proto(export_torch_module_to_onnx(WithLoss(), (x, targets)))
    parameters = {f"model.{key}" for key, _ in module.named_parameters()}
    values = {name: model.graph.initializers.pop(name) for name in parameters}
    tensors = {name: value.const_value for name, value in values.items()}
    for value in values.values():  # an input, so that it is not folded
        value.const_value = None
        model.graph.inputs.append(value)
    FOLD_SHAPES(resolve_cast_like(lift_constants(model)))
    for node in model.graph:
        if node.op_type == "BatchNormalization":  # exported for inference
            set_training_mode(node)
    for name, value in values.items():
        model.graph.inputs.remove(value)
        value.const_value = tensors[name]
        model.graph.initializers[name] = value
    proto = ir.to_proto(model)
    assert isinstance(proto, onnx.ModelProto)
    return proto, targets.numpy()


def _loop(model: Any, parameters: list[str], optimized: bool) -> Any:
    """onnxsim's loop with Adam; it has no option for threads and graph optimizations."""
    import onnxruntime
    import onnxsim

    stock = onnxruntime.InferenceSession

    def open_session(model: Any, sess_options: Any, providers: Any) -> Any:
        sess_options.intra_op_num_threads = 2
        if optimized:
            sess_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(99)
        return stock(model, sess_options, providers)

    loop = onnxsim.compile_training_loop(model, "loss", parameters, optimizer="adam")
    onnxruntime.InferenceSession = open_session
    try:
        loop.step_graph  # noqa: B018 (this builds it)
    finally:
        onnxruntime.InferenceSession = stock
    return loop


def step(folder: str, optimized: bool) -> Callable[[], float]:
    """One step of onnxsim's loop: loss, gradients and Adam's update."""
    import onnx

    where = Path(folder)
    about = json.loads((where / "onnxsim.json").read_text())
    loop = _loop(onnx.load(where / "onnxsim.onnx"), about["parameters"], optimized)
    feeds = dict(np.load(where / "onnxsim.npz"))
    return lambda: float(loop(feeds, LEARNING_RATE))
