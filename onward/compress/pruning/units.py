"""Units: what can be removed from a model, in groups of equals.

groups = find_groups(model)             # of a prepared model (prepare)
groups[0].name, groups[0].kind, groups[0].count     # "fc1.weight", "units", 1536
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Array, Axes, Positions, known_sizes
from onward.compress.pruning.rules.all_rules import RULES
from onward.graph.dtypes import FLOATS
from onward.graph.files import Source, load
from onward.graph.scopes import bodies, graphs_of, walk
from onward.passes.deduplicate import share_initializers
from onward.passes.pipelines import FOLD_SHAPES, PREPARE

_NEWEST = 1 << 30
_RECURRENT = ("LSTM", "GRU", "RNN")
_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Group:
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
    _separate_vectors(copy)
    return copy


def finish(model: ir.Model) -> ir.Model:
    """Merge the vectors again that `prepare` separated."""
    return share_initializers(model)


def _separate_vectors(model: ir.Model) -> None:
    """Give each reader of a shared vector a copy: exporters merge equal biases, such as zeros."""
    for graph in graphs_of(model):
        taken = {str(name) for each in graphs_of(model) for name in each.initializers}
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or len(tensor.shape) != 1 or value.is_graph_output():
                continue
            for number, use in enumerate(list(value.uses())[1:], 1):
                name = f"{value.name}_{number}"
                while name in taken:
                    name += "_"
                taken.add(name)
                copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
                graph.register_initializer(copy)
                use.node.replace_input_with(use.idx, copy)


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


def find_groups(model: ir.Model, positions: Positions | None = None) -> list[Group]:
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
    for numbers, labels in alike.items():
        first = slices[numbers[0]]
        name, number = str(first[0].name), 1
        while name in taken:
            number += 1
            name = f"{first[0].name}:{number}"
        taken.add(name)
        found = tuple(dict.fromkeys((str(slices[n][0].name), slices[n][1]) for n in numbers))
        width = numbers.count(numbers[0])
        kind = _kind([slices[n][0] for n in dict.fromkeys(numbers)], width)
        groups.append(Group(name, kind, np.array(labels), width, found))
    return [group for group in groups if group.count > 1]


def _weight_slices(
    model: ir.Model, positions: Positions
) -> list[tuple[ir.Value, int, Array]]:
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
    if readers & {*_RECURRENT} and len(weights) > 1 and any(
        use.node.op_type in _RECURRENT and use.idx == 2 for w in weights for use in w.uses()
    ):
        return "recurrent"
    if readers & {*_CONVOLUTIONS}:
        return "channels"
    return "heads" if width > 1 else "units"
