"""Capture: a module as an ONNX model, and which input and output is which tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from onward.pytorch.call_structure import Structure
from onward.pytorch.changing_items import ChangingItem, TracedItems
from onward.pytorch.hidden_tensors import HiddenTensors
from onward.pytorch.packed_model import PackedModel
from onward.pytorch.size_guards import SizeGuards
from onward.pytorch.tensor_values import ReadValue


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
