"""Capture a module as an ONNX model whose inputs are its tensors and the user's.

    found = capture(module, args, kwargs)
    found.model      parameters, buffers, tensors of the call -> new buffers, tensors of the result

torch.export traces the module in the mode that it is in; the trace is made functional, so that
changes of buffers (running statistics, counters) are outputs; torch's ONNX exporter translates it.
"""

from __future__ import annotations

import io
import itertools
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch import nn
from torch.export import graph_signature as signatures

from onward.message_text import first_line
from onward.pytorch.call_structure import (
    Structure,
    flatten,
    holds_tensors,
    name_arguments,
    tensor_names,
)
from onward.pytorch.changing_items import (
    ChangingItem,
    ChangingItems,
    Initializes,
    TracedItems,
    tensor_kind,
    tensors_of_items,
)
from onward.pytorch.fallback import CannotCapture, UnsupportedData, refuse_custom_gradients
from onward.pytorch.held_tensors import HeldTensors, refuse_seeds
from onward.pytorch.hidden_tensors import HiddenTensors, hidden_constants, hidden_tensors
from onward.pytorch.layout_reads import has_layout
from onward.pytorch.packed_model import PackedModel
from onward.pytorch.python_state import PythonState
from onward.pytorch.recurrent_shapes import recurrent_shapes
from onward.pytorch.size_guards import SizeGuards
from onward.pytorch.tensor_values import ReadValue
from onward.pytorch.traced_calls import TracedCalls
from onward.pytorch.translate import is_made_by_trace, translate

Tensor = torch.Tensor
Axes = Sequence[Sequence[int]]  # of each tensor: the axes whose size may change
_PREFIX = "module."  # of the wrapped module's names in the traced one
_NO_TRACE = "found a fake tensor in the exported program constant"  # what torch says of .data


@dataclass(frozen=True)
class Capture:
    """A module as an ONNX model; which input and output is which tensor."""

    held: ir.Model | PackedModel
    tensors: dict[str, str]  # input -> the parameter, buffer or attribute that it is
    attributes: dict[str, Any]  # those that are neither parameters nor buffers, and their kinds
    inputs: dict[str, int]  # input -> the tensor of the call that it is
    results: tuple[str | int, ...]  # output, or the tensor of the call that is returned
    returned: dict[int, str]  # results that are tensors of the module
    changes: dict[str, str | int]  # output -> the buffer, or tensor of the call, that it replaces
    structure: Structure  # of the result, or of it and of the attributes that are set
    guards: SizeGuards
    sets: tuple[ChangingItem, ...] = ()  # attributes that results are, after those of the call
    own: int = 0  # results of the call
    items: TracedItems = field(default_factory=TracedItems)
    hidden: HiddenTensors = field(default_factory=HiddenTensors)
    values: tuple[ReadValue, ...] = ()  # numbers of tensors that the forward read
    example: tuple[tuple[int, ...], ...] = ()  # the shapes of the call that was traced
    layout_reads: frozenset[str] = frozenset()  # what the forward reads of layouts in memory
    seconds: float = 0.0  # that the capture took

    @property
    def model(self) -> ir.Model:
        """The model; a new object each time if it is packed."""
        return self.held.unpack() if isinstance(self.held, PackedModel) else self.held

    def packed(self) -> Capture:
        """The same with the model as bytes."""
        return replace(self, held=PackedModel(self.model))


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
    _refuse_hidden_tensors(structure, "takes")
    _refuse_changeable(structure)
    tensors = _separate(tensors)
    named = name_arguments(module.forward, args, kwargs)
    call_names = tensor_names(named)
    calls = TracedCalls(module, tensors, tensors_of_items(changing or {}))
    flat = _FlatCall(module, structure, changing, calls)
    chosen = axes if axes is not None else [default_axes(tensor) for tensor in tensors]
    auto = torch.export.Dim.AUTO
    shapes = [dict.fromkeys(each, auto) or None for each in chosen]
    # a torch.utils.checkpoint around the call counts what its forward saves, and not the trace
    unseen = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    with _quiet(), unseen, recurrent_shapes():
        with refuse_seeds(), refuse_custom_gradients(), _unchecked_distributions(), calls:
            program = _export(flat, tensors, shapes)
        items = TracedItems(changing or {}, calls.items)
        if not has_layout(calls.layouts, (*module.parameters(), *module.buffers(), *tensors)):
            raise CannotCapture("it reads strides, and one of its tensors is not contiguous")
        hidden: dict[str, Tensor] = {}
        if changing is not None and calls.hidden:
            hidden = hidden_constants(program.constants, calls, _device(module, tensors))
        translated, signature = translate(program, hidden)
        guards = _guards(program, len(tensors))  # a translation may fix further sizes
    found = _Reader(module, translated, signature, flat.traced, guards, call_names).capture(hidden)
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


class _TracedResult:
    """The structure of the traced result, and the attributes that are set, which it includes."""

    structure: Structure
    sets: tuple[ChangingItem, ...] = ()
    own: int = 0  # tensors of the result itself


class _FlatCall(nn.Module):
    """A module whose call takes and returns a flat list of tensors."""

    def __init__(
        self,
        module: nn.Module,
        structure: Structure,
        changing: ChangingItems | None,
        calls: TracedCalls,
    ) -> None:
        super().__init__()
        self.module, self._structure, self._changing = module, structure, changing
        self._calls = calls
        self.traced = _TracedResult()  # torch.export takes back changes of the module itself

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        args, kwargs = self._structure.rebuild(tensors)
        state, is_export = PythonState(self.module), self._changing is None
        held = HeldTensors(self.module, tensors)
        try:
            with self._calls.in_forward():  # its hooks run around the captured graph
                found = self.module.forward(*args, **kwargs)
            sets = state.check(self._changing)
            held.check(is_export=is_export)
        finally:
            state.restore()
            if not is_export:
                held.restore()
        results, structure = flatten(found)
        if any(isinstance(leaf, (torch.SymInt, torch.SymFloat)) for leaf in structure.leaves):
            raise CannotCapture("it returns a size of a tensor as a number")
        _refuse_hidden_tensors(structure, "returns")
        if not results:
            raise UnsupportedData("it returns no tensor")
        self.traced.own = len(results)
        if sets:
            self.traced.sets = tuple(sets)
            results, structure = flatten((found, list(sets.values())))
        self.traced.structure = structure
        if not is_export and any(map(torch.is_complex, results)):
            raise UnsupportedData("it returns complex numbers, which a graph has as pairs")
        return results


def _refuse_hidden_tensors(structure: Structure, verb: str) -> None:
    """Refuse objects with tensors that flattening does not find: a trace would keep them."""
    for value in structure.objects():
        if holds_tensors(value):
            kind = type(value)
            raise UnsupportedData(
                f"it {verb} {kind}, whose tensors are hidden: register it with "
                "torch.utils._pytree, or make it a dataclass"
            )


def _refuse_changeable(structure: Structure) -> None:
    """Refuse arguments that are no constants: a program would keep what they were."""
    for value in structure.changeable():
        raise UnsupportedData(f"it takes {type(value)}, whose contents may change between calls")


def _export(flat: _FlatCall, tensors: Sequence[Tensor], shapes: Any) -> Any:
    inputs = tuple(tensors)
    try:
        return torch.export.export(flat, inputs, dynamic_shapes=(tuple(shapes),), strict=False)
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
        raise CannotCapture(_first_line(error)) from error


def _guards(program: Any, count: int) -> SizeGuards:
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


class _Reader:
    """Reads a translated program: gives its inputs and outputs their names and meanings."""

    def __init__(
        self,
        module: nn.Module,
        model: ir.Model,
        signature: signatures.ExportGraphSignature,
        traced: _TracedResult,
        guards: SizeGuards,
        call_names: Sequence[str],
    ) -> None:
        self._module, self._model = module, model
        self._signature, self._traced = signature, traced
        self._guards, self._call_names = guards, call_names
        self._inputs = {str(value.name): value for value in model.graph.inputs}
        self._of_module: dict[str, str] = {}  # placeholder -> the module's tensor
        self._attributes: dict[str, Any] = {}  # neither parameters nor buffers; their kinds
        self._hidden: dict[str, Tensor] = {}  # input -> a tensor that no module registers
        self._of_call: dict[str, int] = {}  # placeholder -> the tensor of the call
        self._names: dict[str, str] = {}  # placeholder -> name of the input
        self._taken: set[str] = set()

    def capture(self, hidden: Mapping[str, Tensor]) -> Capture:
        self._read_inputs(hidden)
        outputs = list(self._signature.output_specs)
        results: list[str | int] = []
        returned: dict[int, str] = {}
        changes: dict[str, str | int] = {}
        values = dict(zip((spec.arg.name for spec in outputs), self._model.graph.outputs))
        kept: dict[str, ir.Value] = {}
        for spec in outputs:
            name = spec.arg.name
            if spec.kind == signatures.OutputKind.USER_OUTPUT:
                if name in self._of_call:
                    results.append(self._of_call[name])
                elif name in self._of_module:
                    returned[len(results)] = self._of_module[name]
                    results.append(-1)
                else:
                    kept[name] = values[name]
                    results.append(name)
            elif spec.kind == signatures.OutputKind.BUFFER_MUTATION:
                kept[name] = values[name]
                changes[name] = str(spec.target).removeprefix(_PREFIX)
            elif spec.kind == signatures.OutputKind.USER_INPUT_MUTATION:
                kept[name] = values[name]
                changes[name] = self._of_call[str(spec.target)]
            elif spec.kind == signatures.OutputKind.PARAMETER_MUTATION:
                target = str(spec.target).removeprefix(_PREFIX)
                raise Initializes(f"it changes a parameter, {target}: make it a buffer")
            else:
                raise CannotCapture(f"torch.export returns {spec.kind.name.lower()}")
        self._model.graph.outputs[:] = list(kept.values())
        renamed = self._rename_outputs(kept)
        return Capture(
            held=self._model,
            tensors={self._names[p]: t for p, t in self._of_module.items() if p in self._names},
            attributes=self._attributes,
            hidden=HiddenTensors(self._hidden),
            inputs={self._names[p]: i for p, i in self._of_call.items() if p in self._names},
            results=tuple(renamed.get(r, r) if isinstance(r, str) else r for r in results),
            returned=returned,
            changes={renamed[name]: target for name, target in changes.items()},
            structure=self._traced.structure,
            guards=self._guards,
            sets=self._traced.sets,
            own=self._traced.own,
        )

    def _read_inputs(self, hidden: Mapping[str, Tensor]) -> None:
        kinds, index = signatures.InputKind, 0
        for spec in self._signature.input_specs:
            name = spec.arg.name
            if spec.kind == kinds.USER_INPUT:
                self._of_call[name] = index
                self._rename(name, self._call_names[index])
                index += 1
            elif spec.kind in (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR):
                target = str(spec.target)
                if target in hidden:
                    self._rename(name, target)
                    self._hidden[self._names[name]] = hidden[target]
                elif target.startswith(_PREFIX) and not is_made_by_trace(target):
                    self._of_module[name] = target.removeprefix(_PREFIX)
                    self._rename(name, self._of_module[name])
                    if spec.kind == kinds.CONSTANT_TENSOR:
                        path = self._of_module[name]
                        self._attributes[path] = tensor_kind(attrgetter(path)(self._module))
            else:
                raise CannotCapture(f"torch.export takes {spec.kind.name.lower()} as an input")

    def _rename(self, placeholder: str, wish: str) -> None:
        value = self._inputs.get(placeholder)
        if value is None:  # a constant
            return
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        value.name = self._names[placeholder] = wish

    def _rename_outputs(self, kept: Mapping[str, ir.Value]) -> dict[str, str]:
        renamed = {}
        for name, value in kept.items():
            new = f"{name}.out" if name in self._taken else name
            value.name = renamed[name] = new
            self._taken.add(new)
        return renamed


@contextmanager
def _quiet() -> Iterator[None]:
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


def _first_line(error: BaseException) -> str:
    if _NO_TRACE in str(error):
        return "torch.export cannot trace it, such as .data of a tensor: use .detach()"
    if "data-dependent" in str(error):
        return "it branches on the value of a tensor, or reads it as a number"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
