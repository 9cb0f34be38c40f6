"""Export a PyTorch module as an ONNX model, and compare the two.

    export(module, (x,), "model.onnx")

Parameters and buffers keep their names, and BatchNormalization is not folded into convolutions: the
file runs on any engine, and `onward train` and TrainingSession train it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import version_converter
from torch import nn

from onward.errors import OptionError
from onward.graph.files import least_ir_version, save
from onward.graph.paths import check_writable, to_path
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.pytorch.call_structure import flatten, name_arguments, tensor_names
from onward.pytorch.capture import default_axes
from onward.pytorch.named_model import NamedModel, in_mode, named_model, unwrap
from onward.sessions.inference import InferenceSession

Tensor = torch.Tensor
DynamicAxes = Mapping[str, Mapping[int, str]]  # input -> {axis: name of its size}
_OLDEST, _USUAL = 13, 18  # opsets: allowed, and taken if the user gives none
_TOLERANCE = 1e-3  # of the largest element: engines round differently


@dataclass(frozen=True)
class ExportedModel:
    """What was exported: where, and how much its outputs differ from PyTorch's."""

    path: str
    opset: int
    inputs: dict[str, str]  # name -> type and shape
    outputs: dict[str, str]
    difference: float | None  # the largest of all elements; None: not compared
    agrees: bool  # within the rounding of engines


def export(
    module: nn.Module,
    args: Any,
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: DynamicAxes | None = None,
    opset: int | None = None,
    check: bool = True,
) -> ExportedModel:
    """Write a module in inference mode as ONNX; large weights go to a second file.

    args, kwargs: the arguments of a call, as an example.
    dynamic: the axes whose sizes may change, {"x": {0: "batch"}}; None: the first of each tensor,
        and the second of token numbers.
    opset: of the model; None: 18, or the oldest that it fits if that is newer.
    check: run the file and compare it with the module, for the example and for other sizes.

    >>> from pathlib import Path; from tempfile import mkdtemp
    >>> found = export(nn.Linear(3, 2), torch.ones(4, 3), Path(mkdtemp()) / "linear.onnx")
    >>> found.inputs, found.outputs, found.agrees
    ({'input': 'FLOAT[batch,3]'}, {'output': 'FLOAT[batch,2]'}, True)
    """
    module, target = unwrap(module), to_path(path)
    check_writable(target)
    positional = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    found = capture_model(module, positional, kwargs or {}, dynamic, opset)
    save(found.model, target)
    graph = found.model.graph
    difference, agrees = None, True
    if check:
        axes = _chosen_axes(module, positional, kwargs or {}, dynamic)
        difference, agrees = _compare(module, positional, kwargs or {}, axes, target, found.outputs)
    return ExportedModel(
        path=str(target),
        opset=found.model.opset_imports[""],
        inputs={str(value.name): _describe(value) for value in graph.inputs},
        outputs={str(value.name): _describe(value) for value in graph.outputs},
        difference=difference,
        agrees=agrees,
    )


def to_onnx(
    module: nn.Module,
    args: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: DynamicAxes | None = None,
    opset: int | None = None,
    training: bool = False,
) -> ir.Model:
    """A module as an ONNX model in memory; `training` keeps Dropout, for training artifacts.

    >>> list(to_onnx(nn.Linear(3, 2), torch.ones(4, 3)).graph.initializers)
    ['weight', 'bias']
    """
    positional = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    module = unwrap(module)
    return capture_model(module, positional, kwargs or {}, dynamic, opset, training).model


def capture_model(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: DynamicAxes | None = None,
    opset: int | None = None,
    training: bool = False,
) -> NamedModel:
    """The module as a model whose dynamic sizes have the names in `dynamic`."""
    if opset is not None and not _OLDEST <= opset <= STOCK_OPSET:
        raise OptionError(f"the opset must be from {_OLDEST} to {STOCK_OPSET}, not {opset}")
    axes = _chosen_axes(module, args, kwargs, dynamic)
    with in_mode(module, training):
        found = named_model(module, args, kwargs, [list(each) for each in axes.values()])
    model = found.model
    model.graph.outputs[:] = [v for v in model.graph.outputs if v.name in found.outputs]
    model.producer_name, model.graph.name = "onward", type(module).__name__
    _name_sizes(model, axes, fixed_is_wrong=dynamic is not None)
    lower_opset(model, opset or STOCK_OPSET, opset or _USUAL)
    if opset is not None and model.opset_imports[""] < opset:  # newer than the capture
        version_converter.convert_version(model, opset)
    model.ir_version = least_ir_version(model)
    return found


# -- dynamic sizes ---------------------------------------------------------------------------------


def _chosen_axes(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: DynamicAxes | None,
) -> dict[str, Mapping[int, str]]:
    """For each tensor of the call, the names of its dynamic axes."""
    named = name_arguments(module.forward, args, kwargs)
    tensors, _ = flatten((tuple(args), dict(kwargs)))
    names = tensor_names(named)
    if dynamic is None:
        wish = ("batch", "sequence")
        return {n: {a: wish[a] for a in default_axes(t)} for n, t in zip(names, tensors)}
    for name in dynamic:
        if name not in names:
            listed = ", ".join(map(repr, names))
            raise OptionError(f"dynamic: the call has no tensor {name!r}\nit has {listed}")
    return {name: dynamic.get(name, {}) for name in names}


def _name_sizes(
    model: ir.Model, axes: Mapping[str, Mapping[int, str]], *, fixed_is_wrong: bool
) -> None:
    """Give the symbols of torch.export the names of the axes."""
    symbols: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, name in axes.get(str(value.name), {}).items():
            assert value.shape is not None
            size = _size(value.shape[axis])
            if not isinstance(size, int):
                symbols.setdefault(str(size), name)
            elif fixed_is_wrong:
                raise OptionError(
                    f"the module works only with {name} = {size} (axis {axis} of {value.name!r})\n"
                    f"write {size} instead of {name!r}, or an example of another size"
                )
    taken: set[str] = set()
    for symbol, name in symbols.items():
        free = (n for n in (name, *(f"{name}_{i}" for i in range(1, len(symbols) + 1))))
        symbols[symbol] = next(n for n in free if n not in taken)
        taken.add(symbols[symbol])
    made = [value for node in model.graph for value in node.outputs]
    for value in (*model.graph.inputs, *made):
        if value.shape is not None:
            value.shape = ir.Shape([_renamed(size, symbols) for size in value.shape])


def _size(size: int | ir.SymbolicDim) -> int | str | None:
    """A number, or the text of a symbol; torch.export writes some numbers as symbols."""
    value = size if isinstance(size, int) else size.value
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _renamed(size: int | ir.SymbolicDim, symbols: Mapping[str, str]) -> int | str | None:
    given = _size(size)
    if not isinstance(given, str):
        return given
    return re.sub(r"[A-Za-z_]\w*", lambda m: symbols.get(m[0], m[0]), given)


def _describe(value: ir.Value) -> str:
    kind = "" if value.dtype is None else value.dtype.name
    sizes = [] if value.shape is None else [str(s) for s in value.shape]
    return f"{kind}[{','.join(sizes)}]"


# -- comparison ----------------------------------------------------------------------------------


def _compare(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    axes: Mapping[str, Mapping[int, str]],
    path: os.PathLike[str],
    outputs: Sequence[str],
) -> tuple[float, bool]:
    """The largest difference of the file's outputs, for the example and for larger sizes."""
    tensors, structure = flatten((tuple(args), dict(kwargs)))
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}
    names = dict.fromkeys(name for each in axes.values() for name in each.values())
    cases = [tensors, *([_grown(t, a, n) for t, a in zip(tensors, axes.values())] for n in names)]
    largest, agrees = 0.0, True
    for i, given in enumerate(cases):
        with torch.no_grad(), in_mode(module, training=False):
            again, kept = structure.rebuild([tensor.clone() for tensor in given])
            try:
                expected, _ = flatten(module(*again, **kept))
            except Exception:
                if i == 0:
                    raise
                continue  # the module does not take this size either
        fed = {n: _to_numpy(t) for n, t in zip(axes, given) if n in known}
        for y, found in zip(expected, session.run(list(outputs), fed)):
            difference, fits = _difference(_to_numpy(y), np.asarray(found))
            largest, agrees = max(largest, difference), agrees and fits
    return largest, agrees


def _grown(tensor: Tensor, axes: Mapping[int, str], name: str) -> Tensor:
    """The tensor, one larger along the axes of this name."""
    for axis, each in axes.items():
        if each == name:
            tensor = torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis)
    return tensor


def _difference(y: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> tuple[float, bool]:
    """The largest difference of two arrays, and whether it is rounding."""
    if y.shape != found.shape:
        return float("inf"), False
    if not y.size:
        return 0.0, True
    a, b = y.astype(np.float64), found.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
    largest = float(np.nan_to_num(gap, nan=np.inf).max())
    finite = np.abs(a[np.isfinite(a)])
    scale = float(finite.max()) if finite.size else 0.0
    return largest, largest <= _TOLERANCE * max(scale, 1e-2)


def _to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
