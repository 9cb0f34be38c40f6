"""Infer the types and shapes of a model's values with ONNX, and fix symbolic dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from onward.graph.operators import CONTROL_FLOW, LOOPS, RECURRENT, SAME_RANK
from onward.graph.protos import from_type_proto, shape_from_type_proto, to_proto
from onward.graph.scopes import COMPOSITES, graphs_of, walk
from onward.graph.shapes import substitutes
from onward.graph.shapes.ml_operators import infer_all_ml, mentions_ml
from onward.graph.shapes.node_inference import clear_wrong_sizes
from onward.graph.shapes.substitutes import HIDDEN, transform_shape

# Initializers above this many bytes go to ONNX's inference only as types: they are weights, not
# shapes, and a protobuf message ends at 2 GB.
_LARGEST_SHAPE_DATA = 8192

# Following data, ONNX makes an object of every element of the vectors that these operators read; a
# vector of 2 ** 50 elements would end the process. They are hidden from ONNX if they read a vector
# that is long, or not known to be short; inferred shapes may show that more of them are safe.
_FOLLOWED = {
    *("Add", "Cast", "Concat", "Gather", "MeanVarianceNormalization", "Mul"),
    *("Size", "Slice", "Squeeze", "Sub", "Unsqueeze"),
}
_LONGEST_SHAPE = 1024  # elements
_MOST_ROUNDS = 4
INVENTED = "unk__"  # how names begin that ONNX invents for sizes

Facts = dict[ir.Value, onnx.TypeProto]


def infer_shapes(model: ir.Model) -> ir.Model:
    """Write the types and shapes that ONNX infers onto every value, subgraphs included.

    What a graph declares for its inputs and outputs stays; operators of unknown domains keep
    what was known about their outputs. An initializer that a feed may override is not a constant.
    """
    is_ml = mentions_ml(model)
    if is_ml:
        infer_all_ml(model)
    facts: Facts = {}
    hidden = _long_reads(model, facts)
    functions = _functions(model)
    if hidden or functions:
        facts = _infer(model, facts, None)
        hidden = _long_reads(model, facts)
    # The bodies of functions may read long vectors: with functions, data is not followed.
    for _ in range(0 if functions else _MOST_ROUNDS):
        facts = _infer(model, facts, hidden)
        before, hidden = hidden, _long_reads(model, facts)
        if hidden == before:
            break
    for value, proto in facts.items():
        _learn(value, proto)
    for _ in range(max(_MOST_ROUNDS, len(model.graph) if is_ml else 0)):
        learnt = [_learn_ranks(graph) for graph in graphs_of(model)]
        if not any(learnt) and not (is_ml and infer_all_ml(model)):
            break
        for value, proto in _infer(model, {}, None).items():
            _learn(value, proto)
    return model


def _learn_ranks(graph: ir.Graph) -> bool:
    """Learn ranks that operators require of their inputs, from the last node to the first.

    Where ONNX gives up (an If whose branches differ, an STFT without a length), a Conv that reads
    the result has as many axes as its weight, and so has what a Relu before it reads.
    """
    learnt = False
    for node in reversed(graph):
        found = transform_shape(node)
        if found is not None and node.outputs[0].shape is None:
            node.outputs[0].type, node.outputs[0].shape = node.inputs[0].type, found  # type: ignore[union-attr]
            learnt = True
        ranks = _required_ranks(node) if node.domain == "" else {}
        for value, rank in ranks.items():
            if value.shape is None and not value.is_graph_output():
                value.shape = ir.Shape([None] * rank)
                learnt = True
    return learnt


def _required_ranks(node: ir.Node) -> dict[ir.Value, int]:
    """The number of axes that a node's definition gives its inputs and outputs."""
    x = node.inputs[0] if node.inputs else None
    y = node.outputs[0] if node.outputs else None
    if x is None or y is None:
        return {}
    if node.op_type == "STFT":
        return {y: 4}
    if node.op_type in RECURRENT:
        return {x: 3}
    if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
        w = node.inputs[1]
        return {x: len(w.shape), y: len(w.shape)} if w is not None and w.shape is not None else {}
    if node.op_type in SAME_RANK:
        known = y.shape if x.shape is None else x.shape
        return {x: len(known), y: len(known)} if known is not None else {}
    return {}


def infer_missing(model: ir.Model) -> ir.Model:
    """The same, where the type or the rank of a value is not known.

    For graphs whose values were typed as they were made: all else was learnt then.
    """
    values = (value for node in _nodes(model) for value in node.outputs if value.name)
    if all(value.type is not None and value.shape is not None for value in values):
        return model
    return infer_shapes(model)


def fix_dimensions(
    model: ir.Model, names: Mapping[str, int], denotations: Mapping[str, int] | None = None
) -> ir.Model:
    """Give symbolic dimensions a fixed size, by name (or by denotation), and infer again.

    fix_dimensions(model, {"batch": 4}): x of (batch, 3) becomes (4, 3), and so on downstream.
    """
    sizes = dict(names)
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            denotation = value.shape.get_denotation(axis) if value.shape is not None else None
            if denotation in (denotations or {}):
                size = (denotations or {})[denotation]  # type: ignore[index]
                if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                    sizes[dim.value] = size
                _set_dim(value, axis, size)
    for graph in model.graphs():
        for value in _values(graph):
            for axis, dim in enumerate(value.shape or ()):
                if isinstance(dim, ir.SymbolicDim) and dim.value in sizes:
                    _set_dim(value, axis, sizes[dim.value])
    return infer_shapes(model)


def with_input_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """A copy of the model whose inputs have these shapes; all other shapes are inferred again."""
    model = model.clone()
    for value in model.graph.inputs:
        if str(value.name) in shapes:
            value.shape = ir.Shape(tuple(shapes[str(value.name)]))
    for node in (node for graph in model.graphs() for node in graph):
        for value in node.outputs:
            value.shape = None  # as it was inferred for any size
    return infer_shapes(model)


def _infer(model: ir.Model, facts: Facts, hidden: Collection[ir.Node] | None) -> Facts:
    """Run ONNX's inference once; with `hidden` None, it follows no data and nothing is hidden."""
    proto = to_proto(_skeleton(model))
    proto.opset_import.add(domain=HIDDEN, version=1)
    for node, node_proto, graph_proto in _pairs(model.graph, proto.graph):
        if hidden and node in hidden:
            node_proto.domain = HIDDEN
            _declare(node, facts, graph_proto)
    _substitute(model.graph, proto.graph)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=hidden is not None)
    except (onnx.shape_inference.InferenceError, RuntimeError, EncodeError):
        return facts  # an invalid model: the engine reports it, with the node
    found: Facts = {}
    types: dict[str, onnx.TypeProto] = {}
    seen = None
    for node, _, part in _pairs(model.graph, inferred.graph):
        if part is not seen:
            types = {info.name: info.type for info in (*part.value_info, *part.output)}
            seen = part
        for value in node.outputs:
            if value.name and value.name in types:
                clear_wrong_sizes(node, types[value.name])
                found[value] = types[value.name]
    _forget_shared_names(found)
    for node in _nodes(model):
        found.update(_subgraph_results(node, found))
    return found


def _forget_shared_names(found: Facts) -> None:
    """ONNX gives all elements of a sequence the same unknown sizes; each has its own."""
    shared = {
        dim.dim_param
        for value, proto in found.items()
        if getattr(value.producer(), "op_type", "") == "SequenceAt"
        for dim in proto.tensor_type.shape.dim
        if dim.dim_param.startswith(INVENTED)
    }
    if shared:
        for proto in found.values():
            for dim in proto.tensor_type.shape.dim:
                if dim.dim_param in shared:
                    dim.Clear()


def _substitute(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Replace operators that ONNX does not know by operators of the same shapes."""
    after = {}
    for i, (node, node_proto) in enumerate(zip(graph, proto.node, strict=True)):
        extra = substitutes.substitute_node(node, node_proto)
        if extra:
            after[i] = extra
        for attribute in node_proto.attribute:
            if attribute.HasField("g"):
                _substitute(node.attributes[attribute.name].as_graph(), attribute.g)
    if after:
        substitutes.insert_nodes_after(proto, after)


def _subgraph_results(node: ir.Node, found: Facts) -> Facts:
    """The types of subgraphs' outputs, from their node's outputs: ONNX does not report them."""
    typed: Facts = {}
    outputs = [None, *node.outputs] if node.op_type == "Loop" else list(node.outputs)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and node.op_type in CONTROL_FLOW:
            for outer, inner in zip(outputs, attribute.as_graph().outputs):
                if outer in found and not found.get(inner, onnx.TypeProto()).WhichOneof("value"):
                    typed[inner] = onnx.TypeProto()
                    typed[inner].CopyFrom(found[outer])
                    if typed[inner].HasField("tensor_type"):  # what is scanned has an axis more
                        typed[inner].tensor_type.ClearField("shape")
    return typed


def _skeleton(model: ir.Model) -> ir.Model:
    """The model without its weights: large initializers become inputs. Nothing is copied."""
    graph = model.graph
    constants: list[ir.Value] = []
    weights: list[ir.Value] = []
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and value.type is None:
            value.type = ir.TensorType(tensor.dtype)
        if tensor is not None and value.shape is None:
            value.shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
        if value.is_graph_input():
            continue
        small = tensor is not None and tensor.nbytes <= _LARGEST_SHAPE_DATA
        (constants if small else weights).append(value)
    for node in _nodes(model):
        _type_subgraph_inputs(node)
    view = ir.GraphView(
        inputs=[*graph.inputs, *weights],
        outputs=graph.outputs,
        nodes=graph,
        initializers=constants,
        opset_imports=dict(model.opset_imports),
        name=graph.name or "graph",
    )
    functions = _functions(model)
    return ir.Model(view, ir_version=max(model.ir_version or 4, 4), functions=functions)  # type: ignore[arg-type]


def _functions(model: ir.Model) -> list[ir.Function]:
    """The functions that ONNX must infer: those of calls whose results are not known yet."""
    unknown = {
        node.op_identifier()
        for node in _nodes(model)
        if node.domain == COMPOSITES
        and any(y.name and (y.type is None or y.shape is None) for y in node.outputs)
    }
    return [f for k, f in model.functions.items() if f.domain != COMPOSITES or k in unknown]


def _type_subgraph_inputs(node: ir.Node) -> None:
    """Give the inputs of a loop's body their types: ONNX infers but does not report them."""
    if node.op_type not in LOOPS or "body" not in node.attributes:
        return
    inputs = node.attributes["body"].as_graph().inputs
    given = list(node.inputs)
    if node.op_type == "Loop":
        given[:2] = []
        for value, kind in zip(inputs, (ir.DataType.INT64, ir.DataType.BOOL)):
            value.type = value.type or ir.TensorType(kind)
            value.shape = ir.Shape(()) if value.shape is None else value.shape
        inputs = inputs[2:]
    for inner, outer in zip(inputs, given):
        if inner.type is None and outer is not None:
            inner.type = outer.type


def _long_reads(model: ir.Model, facts: Facts) -> set[ir.Node]:
    """Nodes to hide from ONNX: they read a vector that may be long, or ONNX is wrong about them."""

    def is_short(value: ir.Value | None) -> bool:
        if value is None:
            return True
        if value in facts:
            tensor = facts[value].tensor_type
            dims = tensor.shape.dim
            sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
            return tensor.HasField("shape") and _are_short(sizes)
        return value.shape is not None and _are_short(
            [dim if isinstance(dim, int) else None for dim in value.shape]
        )

    readers = (node for node in _nodes(model) if node.op_type in _FOLLOWED and node.domain == "")
    long = {node for node in readers if not all(is_short(value) for value in node.inputs)}
    return long | {node for node in _nodes(model) if _is_mistaken(node, facts)}


def _is_mistaken(node: ir.Node, facts: Facts) -> bool:
    """Whether ONNX was wrong about an Attention, which later nodes must not use."""
    if node.op_type != "Attention" or node.domain != "":
        return False
    found = [facts[value].tensor_type.shape.dim for value in node.outputs if value in facts]
    return any(dim.WhichOneof("value") is None for sizes in found for dim in sizes)


def _are_short(sizes: list[int | None]) -> bool:
    """Only vectors are followed element by element."""
    return len(sizes) != 1 or (sizes[0] is not None and sizes[0] <= _LONGEST_SHAPE)


def _declare(node: ir.Node, facts: Facts, graph: onnx.GraphProto) -> None:
    """Declare the known shapes of a hidden node's outputs, without the names that ONNX invents."""
    for value in node.outputs:
        if value not in facts or value.type is not None or not value.name:
            continue
        outputs = [output for output in graph.output if output.name == value.name]
        info = outputs[0] if outputs else graph.value_info.add(name=value.name)
        info.type.CopyFrom(facts[value])
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param.startswith(INVENTED):
                dim.ClearField("dim_param")


def _learn(value: ir.Value, proto: onnx.TypeProto) -> None:
    """Write an inferred type onto a value; a graph's declared outputs are only filled in."""
    if _is_known(value, proto):
        return
    kind, shape = from_type_proto(proto), shape_from_type_proto(proto)
    declared = value.is_graph_output()
    if kind is not None and (value.type is None or not declared):
        value.type = kind
    if shape is None:
        return
    if value.shape is None or (not declared and len(value.shape) != len(shape)):
        value.shape = shape
        return
    if len(value.shape) != len(shape):
        return
    for axis, dim in enumerate(shape):
        ours = value.shape[axis]
        unknown = isinstance(ours, ir.SymbolicDim) and ours.value is None
        if unknown or (not declared and isinstance(dim, int) and dim != ours):
            _set_dim(value, axis, dim)


def _is_known(value: ir.Value, proto: onnx.TypeProto) -> bool:
    """Whether the value already has this tensor type, every size known."""
    if not isinstance(value.type, ir.TensorType) or value.shape is None:
        return False
    found = proto.tensor_type  # of other types, an empty message
    if found.elem_type != int(value.type.dtype) or not found.HasField("shape"):
        return False
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in found.shape.dim]
    return sizes == list(value.shape) and None not in sizes


def _set_dim(value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> None:
    dims = list(value.shape or ())
    denotations = [value.shape.get_denotation(i) for i in range(len(dims))] if value.shape else []
    dims[axis] = dim
    value.shape = ir.Shape(dims, denotations)  # a shape may be shared or frozen: never in place


def _pairs(
    graph: ir.Graph, proto: onnx.GraphProto
) -> Iterator[tuple[ir.Node, onnx.NodeProto, onnx.GraphProto]]:
    """Each node with its message and its graph's message, subgraphs included."""
    for node, node_proto in zip(graph, substitutes.without_inserted(proto.node), strict=True):
        yield node, node_proto, proto
        for attribute in node_proto.attribute:
            if attribute.HasField("g"):
                yield from _pairs(node.attributes[attribute.name].as_graph(), attribute.g)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return walk(model.graph)


def _values(graph: ir.Graph) -> list[ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.outputs, *graph.initializers.values(), *made]
