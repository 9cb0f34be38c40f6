"""Fifty updates on stock onnxruntime, and the same fifty by torch or by a plain formula.

Gradients are given, not computed, and span five orders of magnitude; the learning rate is of
the parameters' type for both sides, as the graph takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

from onward.optimizers.clip import ClipByValue
from onward.optimizers.ema import EMA
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.update_models import flat_update, named_update

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]

STEPS = 50
VECTOR = {"w": (257,)}
TENSORS = {"matrix": (6, 9), "tall": (12, 5), "vector": (7,), "scalar": (), "kernel": (3, 2, 4, 5)}
MATRICES = {"wide": (6, 9), "tall": (12, 5), "square": (4, 4)}


def start(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> Tensors:
    """The parameters before the first update."""
    rng = np.random.default_rng(0)
    return {name: np.array(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def gradients(
    shapes: Mapping[str, tuple[int, ...]], dtype: str, steps: int = STEPS
) -> Iterator[Tensors]:
    """What comes in at each step."""
    rng = np.random.default_rng(1)
    for _ in range(steps):
        yield {
            name: np.array(rng.normal(size=shape) * 10.0 ** rng.uniform(-4, 1, shape), dtype)
            for name, shape in shapes.items()
        }


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def by_graph(
    optimizer: Optimizer,
    shapes: Mapping[str, tuple[int, ...]] = VECTOR,
    dtype: str = "float32",
    *,
    scale: float | None = None,
    clip: ClipByValue | None = None,
    average: EMA | None = None,
) -> Tensors:
    """Parameters and state after all steps; with a scale, the gradients come divided by it."""
    scaled = scale is not None
    if optimizer.elementwise and len(shapes) == 1:
        [name] = shapes
        model = flat_update(optimizer, dtype, scaled, clip=clip, average=average)
        rename = {"parameters": name, "gradients": f"{name}.gradient"}
        rename |= {slot: f"{name}.{slot}" for slot in (*optimizer.slots(()), "average")}
        outputs = {f"new_{old}": new for old, new in rename.items()}
    else:
        specs = {name: (dtype, shape) for name, shape in shapes.items()}
        model = named_update(optimizer, specs, scaled, clip=clip, average=average)
        rename = {}
        outputs = {str(v.name): str(v.name).removesuffix(".new") for v in model.graph.outputs}
    run, number = session(model), np.dtype(dtype).type
    state = start(shapes, dtype)
    for name, shape in shapes.items():
        if average is not None:
            state[f"{name}.average"] = state[name]
        for slot, size in optimizer.slots(shape).items():
            state[f"{name}.{slot}"] = np.full(size, optimizer.initial(slot), dtype)
    for step, given in enumerate(gradients(shapes, dtype), 1):
        feeds = {**state, "learning_rate": number(optimizer.lr), "step": np.int64(step)}
        feeds |= {f"{name}.gradient": g / (scale or 1.0) for name, g in given.items()}
        feeds |= {"gradient_scale": number(scale)} if scaled else {}
        names = [value.name for value in run.get_inputs()]
        fed = {name: np.asarray(feeds[rename.get(name, name)]) for name in names}
        found = zip((value.name for value in run.get_outputs()), run.run(None, fed))
        state |= {outputs[name]: value for name, value in found}
    return state


def by_torch(
    kind: Any,
    shapes: Mapping[str, tuple[int, ...]] = VECTOR,
    dtype: str = "float32",
    **options: Any,
) -> Tensors:
    """Parameters after all steps of a torch optimizer."""
    tensors = {name: torch.from_numpy(value.copy()) for name, value in start(shapes, dtype).items()}
    options["lr"] = float(np.dtype(dtype).type(options["lr"]))
    optimizer = kind(list(tensors.values()), **options)
    for given in gradients(shapes, dtype):
        for name, tensor in tensors.items():
            tensor.grad = torch.from_numpy(given[name])
        optimizer.step()
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def by_formula(
    formula: Callable[[Array, Array, Tensors, int], Array],
    shapes: Mapping[str, tuple[int, ...]] = VECTOR,
    dtype: str = "float64",
) -> Tensors:
    """Parameters after all steps of formula(p, g, slots, step) -> p; slots begin empty."""
    state = start(shapes, dtype)
    slots: dict[str, Tensors] = {name: {} for name in shapes}
    for step, given in enumerate(gradients(shapes, dtype), 1):
        for name, g in given.items():
            state[name] = formula(state[name], g, slots[name], step)
    return state


def distance(found: Tensors, expected: Tensors) -> float:
    """The largest difference, in units of the largest number of its tensor."""
    return max(
        float(np.abs(found[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
    )


def passes(model: ir.Model) -> int:
    """How many nodes go over a vector; nodes that make scalars are not counted."""
    return sum(len(node.outputs[0].shape or ()) > 0 for node in model.graph)
