"""Structure mutators: break a parsed model in place."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

Random = random.Random
INTEGERS = [0, 1, -1, 2, 3, 7, 255, -128, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40]
INTEGERS += [1 << 62, (1 << 63) - 1, -(1 << 63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e-45]
STRINGS = [b"", b"x", b"sum", b"\xff\xfe", b"../x", b"a" * 5000, b"ij,jk->ik", b"linear", b"\0"]
OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})


_DEEPEST = 28


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and every subgraph in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(
                attribute.graphs
            ):
                yield from graphs(inner)


def _graph(rng: Random, model: ModelProto) -> GraphProto:
    return rng.choice(list(graphs(model.graph)))


def _node(rng: Random, model: ModelProto) -> NodeProto | None:
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    return rng.choice(nodes) if nodes else None


def _names(model: ModelProto) -> list[str]:
    found = {"", "nowhere"}
    for graph in graphs(model.graph):
        found |= {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
        found |= {name for node in graph.node for name in (*node.input, *node.output)}
    return sorted(found)


def drop_node(rng: Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    if graph.node:
        del graph.node[rng.randrange(len(graph.node))]


def copy_node(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None:
        _graph(rng, model).node.append(node)


def shuffle_nodes(rng: Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def rewire(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(_names(model))


def rename_output(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(_names(model))


def read_itself(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None and node.input and node.output:
        node.input[rng.randrange(len(node.input))] = rng.choice(node.output)


def more_or_fewer_inputs(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is None:
        return
    if node.input and rng.random() < 0.5:
        del node.input[rng.randrange(len(node.input))]
    else:
        node.input.extend([rng.choice(_names(model))] * rng.choice([1, 2, 40]))


def more_or_fewer_outputs(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is None:
        return
    if node.output and rng.random() < 0.5:
        del node.output[rng.randrange(len(node.output))]
    else:
        node.output.extend(f"extra_{n}" for n in range(rng.choice([1, 2, 20])))


def another_operator(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None:
        node.op_type = rng.choice([*OPERATORS, "", "NoSuchOperator", "If", "Loop", "EPContext"])


def another_domain(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None:
        node.domain = rng.choice(["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "nobody", "local"])


def attribute_value(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is None or not node.attribute:
        return
    attribute = rng.choice(node.attribute)
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = rng.choice(INTEGERS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = rng.choice(STRINGS)
    elif kind == AttributeProto.INTS:
        _change_list(rng, attribute.ints, INTEGERS)
    elif kind == AttributeProto.FLOATS:
        _change_list(rng, attribute.floats, FLOATS)
    elif kind == AttributeProto.STRINGS:
        _change_list(rng, attribute.strings, STRINGS)
    elif kind == AttributeProto.TENSOR:
        _break_tensor(rng, attribute.t)


def _change_list(rng: Random, values: Any, choices: list[Any]) -> None:
    way = rng.randrange(4)
    if way == 0 and len(values):
        values[rng.randrange(len(values))] = rng.choice(choices)
    elif way == 1:
        del values[:]
    elif way == 2 and len(values):
        del values[rng.randrange(len(values))]
    else:
        values.extend([rng.choice(choices)] * rng.choice([1, 2, 70]))


def attribute_type(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None and node.attribute:
        rng.choice(node.attribute).type = rng.choice(list(AttributeProto.AttributeType.values()))


def attribute_gone(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def attribute_more(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is None:
        return
    names = ["axis", "to", "body", "value", "nonsense", "", "kernel_shape", "pads", "seed", "mode"]
    values = [rng.choice(INTEGERS), rng.choice(FLOATS), "text", [1, 2], [1.0], ["a"]]
    node.attribute.append(helper.make_attribute(rng.choice(names), rng.choice(values)))


def attribute_reference(rng: Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node is not None and node.attribute:
        rng.choice(node.attribute).ref_attr_name = rng.choice(["by", "axis", "nobody"])


def tensor(rng: Random, model: ModelProto) -> None:
    tensors = [t for graph in graphs(model.graph) for t in graph.initializer]
    if tensors:
        _break_tensor(rng, rng.choice(tensors))


def _break_tensor(rng: Random, tensor: TensorProto) -> None:
    way = rng.randrange(7)
    if way == 0:
        _change_list(rng, tensor.dims, INTEGERS)
    elif way == 1:
        tensor.data_type = rng.choice([*range(30), -1, 99])
    elif way == 2:
        tensor.raw_data = tensor.raw_data[: rng.randint(0, len(tensor.raw_data))]
    elif way == 3:
        tensor.raw_data = rng.randbytes(rng.choice([0, 1, 8, 100]))
    elif way == 4:
        tensor.float_data.extend([rng.choice(FLOATS)] * rng.choice([1, 5]))
    elif way == 5:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(["../x", "/dev/zero", "", "x"]))
    else:
        tensor.name = rng.choice(["", "x", "y", "nowhere"])


def initializer(rng: Random, model: ModelProto) -> None:
    """Add a weight under a name that may be taken."""
    dims, kind = rng.choice([[], [1], [2], [0], [3, 4], [-1]]), rng.choice([1, 7, 9, 10, 8, 16])
    new = TensorProto(name=rng.choice(_names(model)), data_type=kind, dims=dims)
    new.raw_data = struct.pack("<8q", *[rng.choice([0, 1, -1, 2, 1 << 40])] * 8)
    new.raw_data = new.raw_data[: rng.choice([0, 8, 64])]
    _graph(rng, model).initializer.append(new)


def value_type(rng: Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    value = rng.choice(values)
    way = rng.randrange(5)
    if way == 0:
        value.type.tensor_type.elem_type = rng.choice([*range(28), -5, 77])
    elif way == 1:
        shape = value.type.tensor_type.shape
        dim = rng.choice(shape.dim) if shape.dim else shape.dim.add()
        dim.dim_value = rng.choice(INTEGERS)
    elif way == 2:
        value.type.tensor_type.shape.dim.add().dim_param = rng.choice(["", "n", "a+b", "\n"])
    elif way == 3:
        value.ClearField("type")
    else:
        value.type.sequence_type.elem_type.tensor_type.elem_type = rng.choice([1, 7, 0])


def interface(rng: Random, model: ModelProto) -> None:
    """Repeat, remove or rename inputs and outputs."""
    graph = _graph(rng, model)
    values = rng.choice([graph.input, graph.output])
    way = rng.randrange(4)
    if way == 0 and values:
        del values[rng.randrange(len(values))]
    elif way == 1 and values:
        values.append(rng.choice(values))
    elif way == 2 and values:
        rng.choice(values).name = rng.choice(_names(model))
    else:
        values.append(helper.make_tensor_value_info(rng.choice(_names(model)), 1, [2]))


def value_info(rng: Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    shape = [rng.choice(INTEGERS) for _ in range(rng.randrange(4))]
    kind = rng.choice([1, 7, 10, 9, 8])
    graph.value_info.append(helper.make_tensor_value_info(rng.choice(_names(model)), kind, shape))


def versions(rng: Random, model: ModelProto) -> None:
    way = rng.randrange(5)
    if way == 0:
        model.ir_version = rng.choice([*range(15), -1, 1 << 40])
    elif way == 1 and model.opset_import:
        version = rng.choice([*range(1, 30), 0, -1, 1 << 40])
        rng.choice(model.opset_import).version = version
    elif way == 2 and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    elif way == 3:
        model.opset_import.add(
            domain=rng.choice(["", "ai.onnx", "local"]), version=rng.choice([1, 9])
        )
    elif model.opset_import:
        rng.choice(model.opset_import).domain = rng.choice(["nobody", "ai.onnx.ml"])


def deepest(graph: GraphProto) -> int:
    """The depth of nested graphs."""
    inside = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return 1 + max(map(deepest, inside), default=0)


def nest(rng: Random, model: ModelProto) -> None:
    """Move the whole graph into branches of branches."""
    outputs = [value.name for value in model.graph.output]
    for depth in range(rng.choice([1, 2, 5, 30])):
        if deepest(model.graph) > _DEEPEST:  # protobuf itself would not write it
            return
        inner = GraphProto.FromString(model.graph.SerializeToString())
        del inner.input[:]
        condition = helper.make_tensor(f"c{depth}", TensorProto.BOOL, [], [True])
        constants = [helper.make_node("Constant", [], [name], value_float=1.0) for name in outputs]
        other = helper.make_graph(constants, "other", [], inner.output)
        branch = helper.make_node(
            "If", [condition.name], outputs, then_branch=inner, else_branch=other
        )
        del model.graph.node[:]
        model.graph.node.append(branch)
        model.graph.initializer.append(condition)


def recursion(rng: Random, model: ModelProto) -> None:
    """A function that calls itself, or one that it is called by."""
    names = ["f", "g"] if rng.random() < 0.5 else ["f"]
    for name, called in zip(names, [*names[1:], names[0]]):
        body = helper.make_node(called, ["v"], ["w"], domain="local")
        imports = [helper.make_opsetid("local", 1), helper.make_opsetid("", 21)]
        model.functions.append(helper.make_function("local", name, ["v"], ["w"], [body], imports))
    model.opset_import.add(domain="local", version=1)
    node = _node(rng, model)
    if node is not None:
        node.op_type, node.domain = "f", "local"


def functions(rng: Random, model: ModelProto) -> None:
    """A function of a standard operator's name, or a broken one."""
    if model.functions and rng.random() < 0.6:
        function = rng.choice(model.functions)
        way = rng.randrange(4)
        if way == 0:
            _change_list(rng, function.input, ["v", "w", ""])
        elif way == 1:
            _change_list(rng, function.output, ["v", "w", "nowhere"])
        elif way == 2:
            del function.node[:]
        else:
            del function.opset_import[:]
        return
    body = [helper.make_node(rng.choice(OPERATORS), ["v"], ["w"])]
    name = rng.choice(["Relu", "Add", "Loop", "f"])
    imports = [helper.make_opsetid("", rng.choice([1, 21, 28]))]
    model.functions.append(
        helper.make_function(rng.choice(["", "local"]), name, ["v"], ["w"], body, imports)
    )


def empty(rng: Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    graph.ClearField(rng.choice(["node", "input", "output", "initializer", "name"]))


STRUCTURE: list[Callable[[Random, ModelProto], None]] = [
    drop_node, copy_node, shuffle_nodes, rewire, rename_output, read_itself, more_or_fewer_inputs,
    more_or_fewer_outputs, another_operator, another_domain, attribute_value, attribute_value,
    attribute_type, attribute_gone, attribute_more, attribute_reference, tensor, tensor,
    initializer, value_type, interface, value_info, versions, nest, recursion, functions, empty,
]  # fmt: skip
