"""HalfQuantizer: a model in FP16 or BF16, computed or stored, whichever the provider can do.

quantizer = HalfQuantizer("model.onnx", None)           # for the CPU: stored in 16 bits
small = quantizer.write(quantizer.plan)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onward.compress.quantization.half.computed_nodes import (
    ComputedNodes,
    find_nodes,
    write_nodes,
)
from onward.compress.quantization.half.node_groups import connected_nodes
from onward.compress.quantization.half.rounding_error import check_kind
from onward.compress.quantization.half.stored_weights import (
    StoredWeights,
    find_weights,
    write_weights,
)
from onward.compress.quantization.half.value_ranges import measure_ranges
from onward.compress.quantization.quantization_plan import Plan
from onward.graph.files import load, weight_bytes
from onward.graph.shapes.declared import infer_from_inputs
from onward.passes.deduplicate import share_initializers
from onward.passes.downgrade import lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.fold import fold_constants
from onward.passes.normalize import (
    drop_initializer_inputs,
    lift_constants,
    name_values,
    sort_nodes,
    unify_default_domain,
)
from onward.passes.pass_sequence import PassSequence
from onward.passes.pipelines import BASIC, PREPARE
from onward.passes.rewrite import Names, nodes_of
from onward.passes.upgrade import newest_opset
from onward.providers.provider_names import short_name

if TYPE_CHECKING:
    from onward.compress.calibration import Calibration
    from onward.graph.files import Source

_STORES = ("cpu", "reference")  # providers that have no kernels of 16 bits
_FIRST_BFLOAT16_CAST, _FIRST_BFLOAT16_CONV = 13, 22  # opsets


def _shorten_constants(model: ir.Model) -> ir.Model:
    """Give the values of Constant nodes short names: some exporters' are longer than their data."""
    names = Names(model)
    for node in nodes_of(model):
        value = node.outputs[0] if node.outputs else None
        if node.op_type == "Constant" and value is not None and not value.is_graph_output():
            value.name = names.fresh("c")
    return model


# As little as storing needs: what else PREPARE writes into a model makes its file larger.
_NAME = PassSequence(
    "name",
    (
        unify_default_domain,
        sort_nodes,
        drop_initializer_inputs,
        name_values,
        _shorten_constants,
        lift_constants,
    ),
)
_FOLD = PassSequence(
    "fold", (infer_from_inputs, fold_constants, share_initializers, drop_unused), rounds=2
)


class HalfQuantizer:
    """Writes a model with weights, and where the provider can, computation, in 16 bits.

    Args:
        model: the float32 model
        calibration: data to measure ranges on, for computation in float16; None: no data
        kind: "float16" or "bfloat16"
        provider: who will run the model
        store_only: whether to store in 16 bits and compute in float32; None: if the provider has
            no kernels of 16 bits
        progress: called with what begins
    """

    def __init__(
        self,
        model: Source,
        calibration: Calibration | None,
        *,
        kind: str = "float16",
        provider: str = "cpu",
        store_only: bool | None = None,
        progress: Callable[[str, float, float | None], None] | None = None,
    ) -> None:
        check_kind(kind)
        self.kind = kind
        self.stores = short_name(provider) in _STORES if store_only is None else store_only
        self._selection: StoredWeights | ComputedNodes
        if self.stores:
            self._model = _prepare_stored(model, kind)
            self._selection = find_weights(self._model, kind)
            return
        self._model = _lower(BASIC(PREPARE(load(model).clone())), _FIRST_BFLOAT16_CONV)
        ranges = {}
        if calibration is not None and kind == "float16":  # bfloat16 has the range of float32
            ranges = measure_ranges(self._model, calibration, progress)
        self._selection = find_nodes(self._model, kind, ranges)

    @property
    def model(self) -> ir.Model:
        """The prepared float32 model."""
        return self._model

    @property
    def plan(self) -> Plan:
        """The nodes that compute in 16 bits, or whose weights are stored so."""
        return self._selection.plan

    @property
    def refused(self) -> Mapping[str, str]:
        """Nodes that stay float32, and why."""
        return self._selection.refused

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        """Nodes that share a weight, or that pass values of 16 bits to each other."""
        return connected_nodes(self._model, plan, by_values=not self.stores)

    def write(self, plan: Plan) -> ir.Model:
        """A new model; its inputs and outputs stay float32."""
        if isinstance(self._selection, StoredWeights):
            return write_weights(self._model, self._selection, plan, self.kind)
        return write_nodes(self._model, plan, self.kind)


def _prepare_stored(source: Source, kind: str) -> ir.Model:
    model = load(source).clone()
    is_old = kind == "bfloat16" and model.opset_imports.get("", 1) < _FIRST_BFLOAT16_CAST
    if model.functions or is_old:
        model = _lower(PREPARE(model), _FIRST_BFLOAT16_CAST)
    else:
        model = _NAME(model)
    folded = _FOLD(model.clone())
    return folded if weight_bytes(folded) <= weight_bytes(model) else model


def _lower(model: ir.Model, oldest: int) -> ir.Model:
    """Lower a prepared model, which has the newest opset, to one that engines load."""
    lowered = lower_opset(model, newest_opset(), oldest)
    opset = onnx.helper.make_opsetid("", lowered.opset_imports[""])
    lowered.ir_version = onnx.helper.find_min_ir_version_for([opset], ignore_unknown=True)
    return lowered
