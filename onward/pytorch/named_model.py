"""A captured module as a model file has it: parameters and buffers are initializers.

    found = named_model(module, args, kwargs)
    found.model      tensors of the call -> results of the module, new values of its buffers

Initializers have the names that the module's tensors have in PyTorch, each tensor once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import optimizer as folding
from torch import nn
from torch.onnx._internal.exporter import _core

from onward.gradients.stop_gradient import mark_identities, restore_operators
from onward.graph.graph_ops import extend
from onward.graph.scopes import walk
from onward.passes.drop_unused import drop_unused
from onward.pytorch.batch_norm_form import restore_batch_norms
from onward.pytorch.call_structure import tensor_names
from onward.pytorch.capture import capture
from onward.pytorch.captured_model import Capture
from onward.pytorch.export_trace import Axes
from onward.pytorch.module import Module

# metadata of torch's exporter: whether a tensor is a parameter, where a node was written
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_PLACES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node")
_UPDATED = "{}_updated"  # the output with the new value of a buffer


@dataclass(frozen=True)
class NamedModel:
    """A module as an ONNX model with its tensors; `state`: buffers that a call replaces."""

    model: ir.Model
    outputs: tuple[str, ...]  # the module's results, the first outputs of the model
    state: dict[str, str]  # buffer -> the output that it becomes
    inputs: tuple[str, ...]  # tensors of the call, also those that are not used


def named_model(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], axes: Axes | None = None
) -> NamedModel:
    """Capture a module in the mode that it is in; see `capture`.

    BatchNormalization that trains is written in its inference form, as exporters write it, because
    a training session finds and updates its statistics itself.
    """
    found = capture(module, args, kwargs, axes)
    model = found.model
    changes = {output: of for output, of in found.changes.items() if isinstance(of, str)}
    changes = {output: _first_names(module).get(of, of) for output, of in changes.items()}
    results = _name_results(found)
    outputs = {str(value.name): value for value in model.graph.outputs}
    graph_outputs = [*results, *(outputs[output] for output in changes)]
    model.graph.outputs[:] = graph_outputs
    changes = restore_batch_norms(model, found.tensors, changes)
    restore_operators(model)  # folding would drop marked identities
    folding.fold_constants(model)  # while parameters are inputs: none of them is folded
    mark_identities(model)
    _bind_tensors(model, found, module)
    state = {}
    for value in model.graph.outputs:
        buffer = changes.get(str(value.name))
        if buffer is not None:
            value.name = state[buffer] = _UPDATED.format(buffer)
    drop_unused(model)
    _write_kinds(model, module)
    return NamedModel(
        model=model,
        outputs=tuple(str(value.name) for value in results),
        state=state,
        inputs=tuple(found.inputs),
    )


def unwrap(module: nn.Module) -> nn.Module:
    """The module that an `onward.Module` wraps; any other module as it is."""
    return module.module if isinstance(module, Module) else module


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Put a module into a mode and back; parts that have another mode on purpose keep it."""
    modes = [(each, each.training) for each in module.modules()]
    if module.training != training:
        module.train(training)
    try:
        yield
    finally:
        for each, was in modes:
            each.training = was


# -- names ---------------------------------------------------------------------------------------


def _first_names(module: nn.Module) -> dict[str, str]:
    """Every name of a tensor -> the first name of the same tensor."""
    listed: list[tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
    listed += module.named_buffers(remove_duplicate=False)
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in listed}


def _name_results(found: Capture) -> list[ir.Value]:
    """The module's results as separate values with names: `logits`, `output`, `output_1`."""
    graph, op = found.model.graph, extend(found.model)
    inputs = {str(value.name): value for value in graph.inputs}
    by_tensor = {of: inputs[name] for name, of in found.tensors.items()}
    by_index = {index: inputs[name] for name, index in found.inputs.items()}
    outputs = {str(value.name): value for value in graph.outputs}
    values: list[ir.Value] = []
    for i, result in enumerate(found.results):
        if isinstance(result, str):
            value = outputs[result]
        else:
            value = by_tensor[found.returned[i]] if i in found.returned else by_index[result]
        is_shared = value in values or value in inputs.values() or result in found.changes
        values.append(op.Identity(value) if is_shared else value)
    taken = {str(v.name) for v in (*inputs.values(), *(v for n in graph for v in n.outputs))}
    for value, wish in zip(values, _result_names(found)):
        taken.discard(str(value.name))
        name = next(
            n for n in (wish, *(f"{wish}_{i}" for i in range(len(taken)))) if n not in taken
        )
        taken.add(name)
        value.name = name
    return values


def _result_names(found: Capture) -> list[str]:
    blank = found.structure.rebuild(torch.empty(0) for _ in found.results)
    names = [name or "output" for name in tensor_names(blank)]
    return [f"output_{name}" if name[0].isdigit() else name for name in names]


# -- tensors -------------------------------------------------------------------------------------


def _bind_tensors(model: ir.Model, found: Capture, module: nn.Module) -> None:
    """Turn the inputs that are tensors of the module into initializers, each tensor once."""
    graph, first = model.graph, _first_names(module)
    inputs = {str(value.name): value for value in graph.inputs}
    bound: dict[str, ir.Value] = {}
    for given, of in found.tensors.items():
        value, name = inputs[given], first.get(of, of)
        graph.inputs.remove(value)
        if name in bound:
            value.replace_all_uses_with(bound[name], replace_graph_outputs=True)
            continue
        tensor = _tensor(module, name).detach().cpu().contiguous().clone()
        value.name = name
        value.const_value = _core.TorchTensor(tensor, name=name)
        graph.register_initializer(value)
        bound[name] = value


def _write_kinds(model: ir.Model, module: nn.Module) -> None:
    """Mark the tensors to train; forget the paths of the source, which are the user's own."""
    trained = {name for name, tensor in module.named_parameters() if tensor.requires_grad}
    for name, value in model.graph.initializers.items():
        value.metadata_props[_KIND] = "PARAMETER" if name in trained else "BUFFER"
    for node in walk(model.graph):
        for place in _PLACES:
            node.metadata_props.pop(place, None)


def _tensor(module: nn.Module, path: str) -> torch.Tensor:
    """A parameter, a buffer or another attribute by its path."""
    owner, _, name = path.rpartition(".")
    held: torch.Tensor = getattr(module.get_submodule(owner), name)
    return held
