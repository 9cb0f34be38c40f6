"""A case: a loss, what it is fed, and torch's function that it must equal.

The model gives its inputs back as outputs: the loss is all there is to see. `measured` runs the
loss and its gradients on a provider; `expected` is what torch says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

import onward
from onward.graph.graph_ops import extend
from onward.losses.loss import Loss

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

STOCK = ["CPUExecutionProvider"]
DOUBLE = ["TorchExecutionProvider"]


@dataclass(frozen=True, eq=False)
class Case:
    """A loss of some outputs (feeds named y..., in float64) and its targets (all other feeds)."""

    name: str
    loss: Loss
    feeds: Feeds
    torch: Callable[..., torch.Tensor]  # of the same feeds, by name

    @property
    def outputs(self) -> dict[str, Array]:
        return {name: feed for name, feed in self.feeds.items() if name.startswith("y")}

    def typed(self, dtype: Any) -> dict[str, Array]:
        return {
            name: feed.astype(dtype) if feed.dtype == np.float64 else feed
            for name, feed in self.feeds.items()
        }


def echo(outputs: Feeds, *, dynamic: bool = False, opset: int = 23) -> ir.Model:
    """A model that gives back what it is fed: x of y is called y_in."""
    op = onward.OpBuilder(opset=opset)
    made = {}
    for name, feed in outputs.items():
        sizes = [f"n{n}" for n in feed.shape] if dynamic else feed.shape
        made[name] = op.Identity(op.input(f"{name}_in", feed.dtype, sizes))
    return op.model(**made)


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    """Every value by name, outputs first."""
    graph = model.graph
    made = [value for node in graph for value in node.outputs]
    everything = (*graph.outputs, *graph.inputs, *graph.initializers.values(), *made)
    return {str(value.name): value for value in everything}


def with_loss(model: ir.Model, loss: Loss, name: str = "loss") -> ir.Model:
    """The model with one more output, its last: the loss."""
    op = extend(model)
    value = loss.build(op, values_of(model))
    if value.is_graph_output() or value.is_graph_input():
        value = op.Identity(value)
    value.name = name
    model.graph.outputs.append(value)
    return model


def inputs_of(model: ir.Model) -> dict[str, tuple[str, list[Any]]]:
    """Types and sizes of the inputs, by name."""
    found = {}
    for value in model.graph.inputs:
        assert value.dtype is not None and value.shape is not None
        sizes = [size if isinstance(size, int) else size.value for size in value.shape]
        found[str(value.name)] = value.dtype.name, sizes
    return found


def run(model: ir.Model, feeds: Feeds, providers: list[str]) -> dict[str, Array]:
    """Every output by name; the stock provider is onnxruntime itself, without us."""
    names = [str(value.name) for value in model.graph.outputs]
    taken = {str(value.name) for value in model.graph.inputs}
    feeds = {name: feed for name, feed in feeds.items() if name in taken}
    session: Any
    if providers == STOCK:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        data = ir.to_proto(model).SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=STOCK)
    else:
        session = onward.InferenceSession(model, providers=providers)
    return dict(zip(names, session.run(names, feeds)))


def measured(
    case: Case,
    dtype: Any,
    *,
    dynamic: bool = False,
    providers: list[str] = STOCK,
    opset: int = 23,
) -> tuple[Array, dict[str, Array]]:
    """The loss, and its gradients by output."""
    feeds = case.typed(dtype)
    outputs = {name: feeds.pop(name) for name in case.outputs}
    model = with_loss(echo(outputs, dynamic=dynamic, opset=opset), case.loss)
    shape = model.graph.outputs[-1].shape
    assert shape is not None
    scalar = len(shape) == 0
    seen: Any = "loss" if scalar else {"loss": "cotangent"}
    wrt = [f"{name}_in" for name in outputs]
    extended = onward.gradient(model, seen, wrt)
    feeds |= {f"{name}_in": feed for name, feed in outputs.items()}
    if not scalar:
        value = run(model, feeds, providers)["loss"]
        feeds["cotangent"] = cotangent(value.shape).astype(value.dtype)
    found = run(extended, feeds, providers)
    return found["loss"], {name: found[f"{name}_in_grad"] for name in outputs}


def cotangent(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(7).normal(size=shape)


def expected(case: Case, dtype: Any) -> tuple[Array, dict[str, Array]]:
    """The same from torch's autograd."""
    feeds = {name: torch.tensor(feed) for name, feed in case.typed(dtype).items()}
    for name in case.outputs:
        feeds[name].requires_grad_()
    loss = case.torch(**feeds)
    seed = torch.tensor(cotangent(tuple(loss.shape))).to(loss.dtype) if loss.ndim else None
    loss.backward(seed)  # type: ignore[no-untyped-call]
    gradients = {}
    for name in case.outputs:
        gradient = feeds[name].grad
        assert gradient is not None
        gradients[name] = gradient.numpy()
    return loss.detach().numpy(), gradients


def check(case: Case, dtype: Any, tolerance: float, **rest: Any) -> None:
    """Ours is torch's."""
    loss, gradients = measured(case, dtype, **rest)
    torch_loss, torch_gradients = expected(case, dtype)
    assert loss.dtype == dtype and loss.shape == torch_loss.shape
    np.testing.assert_allclose(loss, torch_loss, rtol=tolerance, atol=tolerance)
    for name, gradient in torch_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def integers(high: int, *shape: int, seed: int = 0, low: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(low, high, size=shape)
