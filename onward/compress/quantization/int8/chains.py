"""Find the nodes between int8 layers that keep the data int8, and divide a plan into groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onward.compress.quantization.int8.int8_layers import Int8Layer
from onward.graph.operators import named
from onward.passes.value_facts import input_of, is_constant, scalar

# Their int8 result has the scale of their data: moving numbers changes none.
MOVING = named(
    "MaxPool Reshape Flatten Transpose Squeeze Unsqueeze Slice Gather DepthToSpace Resize"
)
# They have int8 kernels with scales of their own.
COMPUTING = named("Add Mul Concat AveragePool GlobalAveragePool Sigmoid LeakyRelu")
_ALL_INPUTS = ("Add", "Mul", "Concat")
_FOLDED_BEHIND = ("Conv", "Gemm", "Add", "Mul", "AveragePool")
_LAYERS_IN_GROUP = 4


def data_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of a chain node that hold its data."""
    given = node.inputs if node.op_type in _ALL_INPUTS else node.inputs[:1]
    return [value for value in given if value is not None]


def activation_of(node: ir.Node) -> ir.Node | None:
    """The Relu, or the Clip from 0, if only it reads a node's result: a range replaces it."""
    y = node.outputs[0]
    uses = list(y.uses())
    if node.op_type not in _FOLDED_BEHIND or len(uses) != 1 or y.is_graph_output():
        return None
    reader = uses[0].node
    if reader.domain != "" or reader.graph is not node.graph:
        return None
    if reader.op_type == "Relu":
        return reader
    if reader.op_type == "Clip" and scalar(input_of(reader, 1)) == 0.0:
        top = input_of(reader, 2)
        return reader if top is None or scalar(top) is not None else None
    return None


def result_of(node: ir.Node) -> ir.Value:
    """The value that an int8 node makes: behind its activation, if a range replaces that."""
    activation = activation_of(node)
    return node.outputs[0] if activation is None else activation.outputs[0]


def find_chains(model: ir.Model, layers: Mapping[str, Int8Layer]) -> list[str]:
    """The nodes whose data comes from int8 convolutions or chains, and goes to int8 nodes."""
    nodes = {str(node.name): node for node in model.graph}
    convs = {name for name, layer in layers.items() if layer.operator == "Conv"}
    products = {result_of(nodes[name]) for name in convs}
    found: dict[str, ir.Node] = {}
    for node in model.graph:
        if str(node.name) not in layers and _continues(node, products):
            found[str(node.name)] = node
            products.add(result_of(node))
    readers = {name for name, layer in layers.items() if layer.is_linear}
    for name, node in reversed(list(found.items())):
        wanted = [use for use in result_of(node).uses() if str(use.node.name) in readers]
        if any(use.idx == 0 or str(use.node.name) not in layers for use in wanted):
            readers.add(name)
        else:
            del found[name]
    return list(found)


def _continues(node: ir.Node, products: set[ir.Value]) -> bool:
    if node.domain != "" or node.op_type not in MOVING | COMPUTING or len(node.outputs) != 1:
        return False
    if node.op_type == "Resize" and _mode(node) != "nearest":
        return False
    given = data_inputs(node)
    if any(value.dtype != ir.DataType.FLOAT for value in given):
        return False
    if not all(value in products or _is_weight(value) for value in given):
        return False
    return any(value in products for value in given)


def _mode(node: ir.Node) -> str:
    mode = node.attributes.get("mode")
    return "nearest" if mode is None else str(mode.value)


def _is_weight(value: ir.Value) -> bool:
    return value.is_initializer() and is_constant(value)


def divide(
    model: ir.Model, layers: Mapping[str, Int8Layer], chosen: Iterable[str]
) -> list[list[str]]:
    """Nodes that are undone together, in the order of the graph.

    MatMul and Gemm that read the same value share its int8 form. Convolutions that follow each
    other form a group, up to a branch; chain nodes belong to the group before them. The first
    convolution, whose data has few channels, is a group of its own.
    """
    wanted = set(chosen)
    nodes = [node for node in model.graph if str(node.name) in wanted]
    group_of: dict[str, list[str]] = {}
    groups: list[list[str]] = []
    by_data: dict[str, list[str]] = {}
    for node in nodes:
        name = str(node.name)
        layer = layers.get(name)
        group = _group_of(node, layer, group_of, by_data, layers)
        if group is None:
            group = []
            groups.append(group)
        group.append(name)
        group_of[name] = group
        if layer is not None and layer.operator in ("MatMul", "Gemm"):
            by_data[layer.data] = group
    return groups


def _group_of(
    node: ir.Node,
    layer: Int8Layer | None,
    group_of: Mapping[str, list[str]],
    by_data: Mapping[str, list[str]],
    layers: Mapping[str, Int8Layer],
) -> list[str] | None:
    """The group that a node joins; None if it begins one."""
    if layer is not None and layer.operator != "Conv":
        return by_data.get(layer.data)
    before = _int8_producer(data_inputs(node), group_of)
    if before is None:
        return None
    group = group_of[str(before.name)]
    if layer is None:
        return group
    convs = [name for name in group if name in layers]
    first = layers[convs[0]] if convs else None
    is_first = first is not None and _int8_producer([_data(before)], group_of) is None
    has_one_reader = len(list(result_of(before).uses())) == 1
    if is_first or not has_one_reader or len(convs) >= _LAYERS_IN_GROUP or before.op_type != "Conv":
        return None
    return group


def _data(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _int8_producer(values: Sequence[ir.Value], group_of: Mapping[str, object]) -> ir.Node | None:
    """The last int8 node, in the order of the graph, that makes one of these values."""
    found = []
    for value in values:
        node = value.producer()
        if node is not None and node.op_type in ("Relu", "Clip") and node.inputs[0] is not None:
            behind = node.inputs[0].producer()
            if behind is not None and str(behind.name) in group_of:
                node = behind
        if node is not None and str(node.name) in group_of:
            found.append(node)
    order = list(group_of)
    return max(found, key=lambda node: order.index(str(node.name)), default=None)
