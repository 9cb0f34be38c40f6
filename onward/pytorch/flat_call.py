"""FlatCall: a call of a module as torch.export traces it, from a list of tensors to another."""

from __future__ import annotations

import torch
from torch import nn

from onward.pytorch.call_structure import Structure, flatten, holds_tensors
from onward.pytorch.changing_items import ChangingItem, ChangingItems
from onward.pytorch.fallback import CannotCapture, UnsupportedData
from onward.pytorch.held_tensors import HeldTensors
from onward.pytorch.python_state import PythonState
from onward.pytorch.traced_calls import TracedCalls

Tensor = torch.Tensor


class TracedResult:
    """The structure of the traced result, and the attributes that are set, which it includes."""

    structure: Structure
    sets: tuple[ChangingItem, ...] = ()
    own: int = 0  # tensors of the result itself


class FlatCall(nn.Module):
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
        self.traced = TracedResult()  # torch.export takes back changes of the module itself

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
        refuse_hidden_tensors(structure, "returns")
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


def refuse_hidden_tensors(structure: Structure, verb: str) -> None:
    """Refuse objects with tensors that flattening does not find: a trace would keep them."""
    for value in structure.objects():
        if holds_tensors(value):
            kind = type(value)
            raise UnsupportedData(
                f"it {verb} {kind}, whose tensors are hidden: register it with "
                "torch.utils._pytree, or make it a dataclass"
            )


def refuse_changeable(structure: Structure) -> None:
    """Refuse arguments that are no constants: a program would keep what they were."""
    for value in structure.changeable():
        raise UnsupportedData(f"it takes {type(value)}, whose contents may change between calls")
