"""Build the optimizer graph of the artifacts.

Inputs: `learning_rate` float32 [1], `step` int64 [1], and sequences with one tensor per parameter:
`params`, `gradients`, one for each slot. Outputs: `updated_flag` bool [1], `updated_params`,
`updated_{slot sequence}`. Its metadata also contains the updates that a session would run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.dtypes import HALVES
from onward.graph.graph_ops import GraphOps, extend
from onward.optimizers.clip import ClipByNorm
from onward.optimizers.groups import Assignment, Group, resolve
from onward.optimizers.learning_rates import rate_ratio
from onward.optimizers.optimizer import Optimizer, Scalars
from onward.passes.deduplicate import share_expressions
from onward.passes.drop_unused import drop_unused
from onward.passes.older_opsets import convert_to_opset
from onward.passes.upgrade import upgrade_opset
from onward.training.packed_graphs import pack_session_updates

RATE, STEP, PARAMETERS, GRADIENTS = "learning_rate", "step", "params", "gradients"
FLAG = "updated_flag"
UPDATED = "updated_{}"

# The peer's names of slots.
_SEQUENCES = {"exp_avg": "first_order_moments", "exp_avg_sq": "second_order_moments"}


@dataclass(frozen=True)
class OptimizerPlan:
    """The optimizer of each parameter; None: it is not updated."""

    optimizer: Optimizer
    shapes: dict[str, tuple[int, ...]]
    assignments: list[Assignment]
    kind: ir.DataType  # the type of every parameter

    @property
    def chosen(self) -> dict[str, Optimizer | None]:
        """The optimizer of each parameter."""
        found = {name: each.optimizer for each in self.assignments for name in each.names}
        return {name: found[name] for name in self.shapes}

    @property
    def sequences(self) -> dict[str, str]:
        """The slots of all optimizers, and the names of their sequences."""
        slots = [
            slot
            for name, chosen in self.chosen.items()
            if chosen is not None
            for slot in chosen.slots(self.shapes[name])
        ]
        return {slot: _SEQUENCES.get(slot, slot) for slot in dict.fromkeys(slots)}

    @property
    def layout(self) -> dict[str, dict[str, tuple[list[int], float]]]:
        """The shape and initial number of each slot, by sequence and parameter."""
        found: dict[str, dict[str, tuple[list[int], float]]] = {
            sequence: {} for sequence in self.sequences.values()
        }
        for name, optimizer in self.chosen.items():
            if optimizer is not None:
                for slot, shape in optimizer.slots(self.shapes[name]).items():
                    sizes = [int(size) for size in shape]
                    found[self.sequences[slot]][name] = (sizes, optimizer.initial(slot))
        return found

    @property
    def wide(self) -> ir.DataType:
        """The type in which updates are computed, and slots are kept."""
        return ir.DataType.FLOAT if self.kind in HALVES else self.kind


def plan_optimizer(
    optimizer: Optimizer,
    groups: Sequence[Group],
    shapes: dict[str, tuple[int, ...]],
    kind: ir.DataType,
) -> OptimizerPlan:
    """Assign each parameter the optimizer of its group."""
    assignments = resolve(optimizer, groups, shapes)
    for chosen, _ in assignments:
        if chosen is not None and chosen.stored_slots():
            raise OptionError(
                f"artifacts keep the state of optimizers in float32, not in 16 bits: {chosen!r}\n"
                "leave state_dtype out, or train with a TrainingSession"
            )
    return OptimizerPlan(optimizer, shapes, assignments, kind)


def add_inputs(graph: ir.Graph, plan: OptimizerPlan) -> None:
    """Add the inputs of an optimizer graph."""
    one = ir.Shape([1])
    graph.inputs.append(ir.val(RATE, dtype=ir.DataType.FLOAT, shape=one))
    graph.inputs.append(ir.val(STEP, dtype=ir.DataType.INT64, shape=one))
    elements = dict.fromkeys((PARAMETERS, GRADIENTS), plan.kind)
    elements |= dict.fromkeys(plan.sequences.values(), plan.wide)
    for name, element in elements.items():
        graph.inputs.append(ir.val(name, type=ir.SequenceType(ir.TensorType(element))))


def write_update(
    model: ir.Model, plan: OptimizerPlan, gradients: str = GRADIENTS, opset: int = 0
) -> ir.Model:
    """Append the update of each parameter to a graph that has the inputs.

    `gradients` names their sequence: the input, or the clipped one. The result is in `opset`, or in
    the oldest one that has its operators.
    """
    op = extend(upgrade_opset(model))
    values = {str(value.name): value for value in model.graph.inputs}
    values |= {str(value.name): value for node in model.graph for value in node.outputs}
    step = op.Squeeze(values[STEP], [0])
    rate = _cast(op, op.Squeeze(values[RATE], [0]), plan.wide)
    results: dict[str, list[ir.Value]] = {PARAMETERS: []}
    results |= {name: [] for name in plan.sequences.values()}
    for index, name in enumerate(plan.shapes):
        read = {
            each: _element(op, values[each], index, plan.kind if each == PARAMETERS else plan.wide)
            for each in results
        }
        g = _element(op, values[gradients], index, plan.kind)
        for each, tensor in _update_parameter(op, plan, name, read, g, rate, step).items():
            results[each].append(tensor)
    _add_output(op, FLAG, op.Identity(op.constant(np.array([True]))))
    for name, tensors in results.items():
        sequence = op.SequenceConstruct(*tensors)
        sequence.type = values[name].type
        _add_output(op, UPDATED.format(name), sequence)
    return convert_to_opset(drop_unused(share_expressions(model)), opset)


def _update_parameter(
    op: GraphOps,
    plan: OptimizerPlan,
    name: str,
    read: dict[str, ir.Value],
    g: ir.Value,
    rate: ir.Value,
    step: ir.Value,
) -> dict[str, ir.Value]:
    """A parameter and its slots after the update; sequences without such a slot are unchanged."""
    optimizer, shape = plan.chosen[name], plan.shapes[name]
    if optimizer is None:
        return read
    for value in (read[PARAMETERS], g):
        value.shape = ir.Shape(shape)
    slots = {slot: read[plan.sequences[slot]] for slot in optimizer.slots(shape)}
    for slot, sizes in optimizer.slots(shape).items():
        slots[slot].shape = ir.Shape(sizes)
    ratio = rate_ratio(optimizer.lr, plan.optimizer.lr)
    if ratio is None:
        rate = op.constant(np.array(optimizer.lr, plan.wide.numpy()))
    elif ratio != 1.0:
        rate = op.Mul(rate, ratio)
    p, wide_g = (_cast(op, value, plan.wide) for value in (read[PARAMETERS], g))
    new, renewed = optimizer.update(op, p, wide_g, slots, Scalars(rate, step))
    named = {plan.sequences[slot]: value for slot, value in renewed.items()}
    return read | named | {PARAMETERS: _cast(op, new, plan.kind)}


def write_metadata(model: ir.Model, plan: OptimizerPlan) -> None:
    """Write the optimizer's settings and the layout of its slots to the metadata."""
    entries = {
        "optimizer": plan.optimizer.to_dict(),
        "slots": list(plan.sequences.values()),
        "slot_layout": plan.layout,
    }
    model.metadata_props.update({f"onward.{key}": json.dumps(v) for key, v in entries.items()})


def attach_updates(model: ir.Model, plan: OptimizerPlan, clip: ClipByNorm | None = None) -> None:
    """Store the updates that a session would run in the metadata."""
    specs = {name: (plan.kind.numpy().name, shape) for name, shape in plan.shapes.items()}
    pack_session_updates(model, plan.assignments, specs, plan.sequences, clip)


def _cast(op: GraphOps, value: ir.Value, kind: ir.DataType) -> ir.Value:
    return value if value.dtype == kind else op.Cast(value, to=int(kind))


def _element(op: GraphOps, sequence: ir.Value, index: int, kind: ir.DataType) -> ir.Value:
    tensor: ir.Value = op.SequenceAt(sequence, np.int64(index))
    tensor.type = ir.TensorType(kind)
    return tensor


def _add_output(op: GraphOps, name: str, value: ir.Value) -> None:
    value.name = name
    op.graph.outputs.append(value)
