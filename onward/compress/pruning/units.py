"""Units: what can be removed from a model, in groups of equals.

groups = find_groups(model)             # of a prepared model (prepare)
groups[0].name, groups[0].kind, groups[0].count     # "fc1.weight", "units", 1536
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from onward.compress.pruning.axes import Array, Axes, Positions, known_sizes
from onward.compress.pruning.rules.all_rules import RULES
from onward.errors import UnsupportedModel
from onward.graph.dtypes import FLOATS
from onward.graph.files import Source, least_ir_version, load
from onward.graph.scopes import bodies, graphs_of, walk
from onward.graph.shapes.fast import size_added_axes
from onward.graph.shapes.node_inference import infer_outputs
from onward.passes.deduplicate import share_initializers
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import FOLD_SHAPES, PREPARE

_NEWEST = 1 << 30
_RECURRENT = ("LSTM", "GRU", "RNN")
_MOVING = ("Slice", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Cast")
_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class UnitGroup:
    """Units that are interchangeable: the same weights have a slice for each of them.

    Attributes:
        name: the first weight that has a slice for each unit
        kind: "channels" of convolutions, "heads", "units" of matrix products, "recurrent" units
        labels: the label of each unit among the positions, in the order of the weight
        width: how many positions of the weight a unit has: 32 for a head of size 32
        weights: the weights with slices, by name, and the axis
    """

    name: str
    kind: str
    labels: Array
    width: int
    weights: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(self.labels)


def prepare(model: Source) -> ir.Model:
    """A copy of a model in its normal form, sizes folded; every weight has its own vectors."""
    copy = PREPARE(load(model).clone())
    kept = [value for value in copy.graph.inputs if not value.is_initializer()]
    copy.graph.inputs.clear()
    copy.graph.inputs.extend(kept)  # a fed weight could not be cut
    copy = FOLD_SHAPES(copy)
    complete_sizes(copy)
    _drop_zero_states(copy)
    _separate_vectors(copy)
    return drop_unused(copy)


def complete_sizes(model: ir.Model) -> None:
    """Infer sizes node by node where inference of the whole model fails: after long biases."""
    size_added_axes(model)
    opset = model.opset_imports.get("", 1)
    for node in walk(model.graph):
        if node.domain or not onnx.defs.has(node.op_type, max_inclusive_version=opset):
            continue
        before = [value.shape for value in node.outputs]
        if all(shape is not None and shape.is_static() for shape in before):
            continue
        if node.op_type == "Expand" and (shape := _expanded(node)) is not None:
            node.outputs[0].shape = shape
            continue
        with contextlib.suppress(ValueError):
            infer_outputs(node, onnx.defs.get_schema(node.op_type, opset))
        for value, known in zip(node.outputs, before, strict=True):
            value.shape = _merged(known, value.shape)


def _expanded(node: ir.Node) -> ir.Shape | None:
    """The shape of an Expand to the shape of another value; None if it is another Expand."""
    x, target = node.inputs[0], node.inputs[1]
    maker = target.producer() if target is not None else None
    if maker is None or maker.op_type != "Shape" or "end" in maker.attributes:
        return None
    like = maker.inputs[0]
    if x is None or x.shape is None or like is None or like.shape is None:
        return None
    if len(like.shape) != len(x.shape):
        return None
    if maker.attributes.get_int("start", 0):
        return None
    return ir.Shape([m if n == 1 else n for n, m in zip(x.shape, like.shape, strict=True)])


def _merged(a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
    """The sizes that either shape knows; where both do, the first."""
    if a is None or b is None or len(a) != len(b):
        return b if a is None else a
    return ir.Shape(
        [n if isinstance(n, int) or not isinstance(m, int) else m for n, m in zip(a, b)]
    )


def finish(model: ir.Model) -> ir.Model:
    """Merge the vectors again that `prepare` separated; lower the opset for stock engines."""
    model = share_initializers(model)
    with contextlib.suppress(UnsupportedModel):  # it needs a newer opset
        model = lower_opset(model, STOCK_OPSET)
    model.ir_version = least_ir_version(model)
    return model


def _separate_vectors(model: ir.Model) -> None:
    """Give each reader of a shared vector a copy: exporters merge equal biases, such as zeros."""
    for graph in graphs_of(model):
        taken = {str(name) for each in graphs_of(model) for name in each.initializers}
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or not tensor.size or value.is_graph_output():
                continue
            if tensor.size not in tensor.shape.numpy():  # of several axes, or one number
                continue
            for number, use in enumerate(list(value.uses())[1:], 1):
                name = f"{value.name}_{number}"
                while name in taken:
                    name += "_"
                taken.add(name)
                copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
                graph.register_initializer(copy)
                use.node.replace_input_with(use.idx, copy)


def _drop_zero_states(model: ir.Model) -> None:
    """Leave out initial states that are zero, the default: layers often share one."""
    for node in walk(model.graph):
        if node.op_type in _RECURRENT:
            for place in range(5, min(len(node.inputs), 7)):
                if _is_zero(node.inputs[place]):
                    node.replace_input_with(place, None)


def _is_zero(value: ir.Value | None) -> bool:
    """Whether all elements of a value are known to be 0."""
    while value is not None and value.const_value is None:
        node = value.producer()
        if node is None or node.domain:
            return False
        if node.op_type == "ConstantOfShape":
            filled = node.attributes.get_tensor("value", None)
            return filled is None or not filled.numpy().any()
        if node.op_type not in _MOVING:
            return False
        value = node.inputs[0]
    return value is not None and not value.is_graph_input() and not _data(value).any()


def _data(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()


def find_positions(model: ir.Model) -> Positions:
    """Run the rules over all nodes of a prepared model, those of subgraphs too."""
    axes = Axes()
    for value in (*model.graph.inputs, *model.graph.outputs):
        _pin_value(axes, value)
    for node in walk(model.graph):
        inner = bodies(node)
        for body in inner:
            for value in (*body.inputs, *body.outputs):
                _pin_value(axes, value)
        axes.begin_node()
        rule = None if inner else RULES.find(node.domain, node.op_type, _NEWEST)
        if rule is not None:
            rule(node, axes)
        axes.pin_rest([*node.inputs, *node.outputs])
    return axes.resolve()


def _pin_value(axes: Axes, value: ir.Value) -> None:
    for place in range(len(known_sizes(value) or ())):
        axes.pin((value, place))


def find_groups(model: ir.Model, positions: Positions | None = None) -> list[UnitGroup]:
    """What can be removed from a prepared model, in the order of its weights."""
    positions = positions or find_positions(model)
    slices = _weight_slices(model, positions)
    rows: dict[int, list[int]] = {}  # label: numbers of the slices, each as often as it has places
    for number, (_, _, labels) in enumerate(slices):
        for label in labels.tolist():
            if not positions.pinned[label]:
                rows.setdefault(label, []).append(number)
    alike: dict[tuple[int, ...], list[int]] = {}
    for label, numbers in rows.items():
        alike.setdefault(tuple(numbers), []).append(label)
    groups, taken = [], set()
    for signature, units in alike.items():
        numbers = list(signature)
        first = slices[numbers[0]]
        name, number = str(first[0].name), 1
        while name in taken:
            number += 1
            name = f"{first[0].name}:{number}"
        taken.add(name)
        found = tuple(dict.fromkeys((str(slices[n][0].name), slices[n][1]) for n in numbers))
        width = numbers.count(numbers[0])
        kind = _kind([slices[n][0] for n in dict.fromkeys(numbers)], width)
        groups.append(UnitGroup(name, kind, np.array(units), width, found))
    return [group for group in groups if group.count > 1]


def _weight_slices(model: ir.Model, positions: Positions) -> list[tuple[ir.Value, int, Array]]:
    """Every axis of every float weight of at least two axes, with the labels along it."""
    found = []
    for value in all_weights(model):
        if len(known_sizes(value) or ()) < 2 or value.dtype not in FLOATS:
            continue
        for axis in range(len(known_sizes(value) or ())):
            labels = positions.of((value, axis))
            if labels is not None and len(labels) > 1:
                found.append((value, axis, labels))
    return found


def all_weights(model: ir.Model) -> list[ir.Value]:
    """The initializers of a model and its subgraphs, in the order in which nodes read them."""
    found: dict[ir.Value, None] = {}
    for node in walk(model.graph):
        for value in node.inputs:
            if value is not None and value.is_initializer() and value.const_value is not None:
                found[value] = None
    return list(found)


def _kind(weights: list[ir.Value], width: int) -> str:
    readers = {use.node.op_type for weight in weights for use in weight.uses()}
    if (
        readers & {*_RECURRENT}
        and len(weights) > 1
        and any(
            use.node.op_type in _RECURRENT and use.idx == 2 for w in weights for use in w.uses()
        )
    ):
        return "recurrent"
    if readers & {*_CONVOLUTIONS}:
        return "channels"
    return "heads" if width > 1 else "units"
