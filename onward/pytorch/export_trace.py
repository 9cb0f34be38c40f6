"""Trace a call of a module by torch.export: its program, and the sizes for which that is valid."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.export import graph_signature as signatures
from torch.nn.modules import rnn

from onward.message_text import first_line
from onward.pytorch.changing_items import Initializes
from onward.pytorch.fallback import CannotCapture, refuse_custom_gradients
from onward.pytorch.flat_call import FlatCall
from onward.pytorch.held_tensors import refuse_seeds
from onward.pytorch.size_guards import SizeGuards
from onward.pytorch.traced_calls import TracedCalls

Tensor = torch.Tensor
Axes = Sequence[Sequence[int]]  # of each tensor: the axes whose size may change
_NO_TRACE = "found a fake tensor in the exported program constant"  # what torch says of .data


def export_trace(flat: FlatCall, tensors: Sequence[Tensor], axes: Axes, calls: TracedCalls) -> Any:
    """The program of torch.export for a call with these tensors; sizes of the `axes` may change."""
    shapes = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) or None for each in axes)
    with refuse_seeds(), refuse_custom_gradients(), _unchecked_distributions(), calls:
        return _export(flat, tuple(tensors), shapes)


def _export(flat: FlatCall, tensors: tuple[Tensor, ...], shapes: Any) -> Any:
    try:
        return torch.export.export(flat, tensors, dynamic_shapes=(shapes,), strict=False)
    except CannotCapture:
        raise
    except Exception as error:  # torch.export raises what the module's code raises, and its own
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Initializes):
                raise Initializes(first_line(cause), cause.items) from error
            if isinstance(cause, CannotCapture):
                raise type(cause)(first_line(cause)) from error
            cause = cause.__cause__ or cause.__context__
        raise CannotCapture(_reason(error)) from error


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Let torch.distributions not check its arguments, which would be branches on their values.

    A distribution that is made with validate_args=True does; torch.compile leaves checks out, too.
    """
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def size_guards(program: Any, count: int) -> SizeGuards:
    """The sizes for which a program is valid."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = program.graph_signature.input_specs
    user = signatures.InputKind.USER_INPUT
    values = [n.meta["val"] for n, s in zip(nodes, specs) if s.kind == user]
    assert len(values) == count
    conditions: list[Any] = []
    modes = [v.fake_mode for v in values if getattr(v, "fake_mode", None) is not None]
    if modes and modes[0].shape_env is not None:
        environment = modes[0].shape_env
        conditions = [environment.simplify(guard.expr) for guard in environment.guards]
        for symbol, bounds in program.range_constraints.items():
            if isinstance(bounds.lower, sympy.Integer):
                conditions.append(symbol >= bounds.lower)
            if isinstance(bounds.upper, sympy.Integer):
                conditions.append(symbol <= bounds.upper)
    return SizeGuards([value.shape for value in values], conditions)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter: what matters is raised."""
    of_torch = ("onnx", "export", "_export", "fx", "_subclasses")
    names = (*(f"torch.{name}" for name in of_torch), "onnxscript")
    logs = [logging.getLogger(name) for name in names]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        # torch.export prints the graph that it has so far to stderr
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels):
            log.setLevel(level)


def _reason(error: BaseException) -> str:
    """Why torch.export fails, in one line."""
    if _NO_TRACE in str(error):
        return "torch.export cannot trace it, such as .data of a tensor: use .detach()"
    if _runs_packed(error):
        return (
            "it runs a recurrent layer on packed sequences, whose layout depends on their lengths"
        )
    if "data-dependent" in str(error):
        return "it branches on the value of a tensor, or reads it as a number"
    if isinstance(error, DynamicOutputShapeException):
        return f"the shape of a result of {error.func} depends on the values of tensors"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _runs_packed(error: BaseException) -> bool:
    """Whether the forward of a recurrent layer, which has `batch_sizes` if it is packed, failed."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    layers = (frame for frame in frames if frame.f_globals.get("__name__") == rnn.__name__)
    return any(frame.f_locals.get("batch_sizes") is not None for frame in layers)
