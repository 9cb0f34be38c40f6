"""TraceReader: the names and meanings of the inputs and outputs of a translated trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.export import graph_signature as signatures

from onward.pytorch.captured_model import Capture
from onward.pytorch.changing_items import Initializes, tensor_kind
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.flat_call import TracedResult
from onward.pytorch.hidden_tensors import HiddenTensors
from onward.pytorch.size_guards import SizeGuards
from onward.pytorch.translate import is_made_by_trace

Tensor = torch.Tensor
_PREFIX = "module."  # of the wrapped module's names in the traced one


class TraceReader:
    """Reads a translated trace of a call: gives its inputs and outputs their names and meanings."""

    def __init__(
        self,
        module: nn.Module,
        model: ir.Model,
        signature: signatures.ExportGraphSignature,
        traced: TracedResult,
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
        made = (value for node in model.graph.all_nodes() for value in node.outputs)
        values = (*made, *model.graph.initializers.values())
        self._computed = {str(value.name): value for value in values}

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
        self._give_way(wish)
        value.name = self._names[placeholder] = wish

    def _give_way(self, name: str) -> None:
        """Rename a computed value that has the name of an input, such as "cat"."""
        value = self._computed.pop(name, None)
        if value is None:
            return
        while name in self._computed or name in self._taken:
            name += "_"
        value.name, self._computed[name] = name, value

    def _rename_outputs(self, kept: Mapping[str, ir.Value]) -> dict[str, str]:
        renamed = {}
        for name, value in kept.items():
            new = f"{name}.out" if name in self._taken else name
            value.name = renamed[name] = new
            self._taken.add(new)
        return renamed
