"""Capture a module as an ONNX model whose inputs are its tensors and the user's.

    found = capture(module, args, kwargs)
    found.model      parameters, buffers, tensors of the call -> new buffers, tensors of the result

torch.export traces the module in the mode that it is in; the trace is made functional, so that
changes of buffers (running statistics, counters) are outputs; torch's ONNX exporter translates it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from onward.pytorch.call_structure import flatten, name_arguments, tensor_names
from onward.pytorch.captured_model import Capture
from onward.pytorch.changing_items import ChangingItems, TracedItems, tensors_of_items
from onward.pytorch.export_trace import Axes, export_trace, quiet_exporter, size_guards
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.flat_call import FlatCall, refuse_changeable, refuse_hidden_tensors
from onward.pytorch.hidden_tensors import hidden_constants, hidden_tensors
from onward.pytorch.layout_reads import has_layout
from onward.pytorch.python_state import PythonState
from onward.pytorch.recurrent_shapes import recurrent_shapes
from onward.pytorch.trace_reader import TraceReader
from onward.pytorch.traced_calls import TracedCalls
from onward.pytorch.traced_covariance import traced_covariance
from onward.pytorch.translate import translate

Tensor = torch.Tensor


def capture(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    axes: Axes | None = None,
    *,
    changing: ChangingItems | None = None,
) -> Capture:
    """Trace a module for these arguments; `axes` are those whose sizes may change.

    `changing` are attributes and items that earlier calls have changed: those that are set to
    tensors are results, other changes are refused. None: an export, which leaves changes out.
    """
    start = time.perf_counter()
    tensors, structure = flatten((tuple(args), dict(kwargs)))
    refuse_hidden_tensors(structure, "takes")
    refuse_changeable(structure)
    tensors = _separate(tensors)
    named = name_arguments(module.forward, args, kwargs)
    call_names = tensor_names(named)
    calls = TracedCalls(module, tensors, tensors_of_items(changing or {}))
    flat = FlatCall(module, structure, changing, calls)
    chosen = axes if axes is not None else [default_axes(tensor) for tensor in tensors]
    # a torch.utils.checkpoint around the call counts what its forward saves, and not the trace
    unseen = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    with quiet_exporter(), unseen, recurrent_shapes(), traced_covariance():
        program = export_trace(flat, tensors, chosen, calls)
        items = TracedItems(changing or {}, calls.items)
        if not has_layout(calls.layouts, (*module.parameters(), *module.buffers(), *tensors)):
            raise CannotCapture("it reads strides, and one of its tensors is not contiguous")
        hidden: dict[str, Tensor] = {}
        if changing is not None and calls.hidden:
            hidden = hidden_constants(program.constants, calls, _device(module, tensors))
        translated, signature = translate(program, hidden)
        guards = size_guards(program, len(tensors))  # a translation may fix further sizes
    reader = TraceReader(module, translated, signature, flat.traced, guards, call_names)
    found = reader.capture(hidden)
    if hidden:
        places = PythonState(module).tensors()
        found = replace(
            found, hidden=hidden_tensors(found.hidden.inputs, calls.hidden.values(), places)
        )
    example = tuple(tuple(tensor.shape) for tensor in tensors)
    seconds = time.perf_counter() - start
    reads = frozenset(calls.layouts)
    return replace(
        found,
        example=example,
        layout_reads=reads,
        items=items,
        values=tuple(calls.values.values()),
        seconds=seconds,
    )


def _device(module: nn.Module, call: Sequence[Tensor]) -> torch.device:
    """Where a program runs."""
    first = next(itertools.chain(module.parameters(), module.buffers(), call), None)
    return torch.device("cpu") if first is None else first.device


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _separate(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, each a different one: torch.export would read two arguments as the same."""
    seen: set[int] = set()
    found = []
    for tensor in tensors:
        found.append(tensor.detach().clone() if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return found


def default_axes(tensor: Tensor) -> list[int]:
    """The axes whose size may change from call to call: batch, and sequence of token numbers."""
    is_token = not tensor.is_floating_point() and tensor.ndim == 2
    return list(range(min(tensor.ndim, 1 + is_token)))
