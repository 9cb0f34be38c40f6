"""The normal form of a model, which every other package may rely on after PREPARE.

Nodes in topological order, unique names, "" for the default domain, functions inlined (except those
of domain `onward`, which an engine may have as one kernel), constants as initializers, default
attributes written out, CastLike resolved to Cast.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from onward.errors import InvalidModel, UnsafeModel
from onward.graph.initializer_names import rename
from onward.graph.scopes import COMPOSITES, walk
from onward.passes.rewrite import Names, Ops, nodes_of, replace

_MOST_INLINED = 1_000_000  # nodes: functions that call functions can double at every level
_FIRST_OVERRIDABLE_IR = 4  # before, every initializer had to be listed as an input


def unify_default_domain(model: ir.Model) -> ir.Model:
    """Rename the domain "ai.onnx" to "", in the model and in its functions."""
    for imports in [model.opset_imports, *(f.opset_imports for f in model.functions.values())]:
        if "ai.onnx" in imports:
            imports[""] = max(imports.pop("ai.onnx"), imports.get("", 0))
    newest = onnx.defs.onnx_opset_version()
    model.opset_imports.setdefault("", newest if _is_all_custom(model) else 1)
    return model


def _is_all_custom(model: ir.Model) -> bool:
    return all(node.domain != "" for node in nodes_of(model))


def sort_nodes(model: ir.Model) -> ir.Model:
    """Sort the nodes of every graph topologically."""
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError as error:
        name = model.graph.name
        raise InvalidModel(
            f"the nodes of graph {name!r} depend on each other in a circle"
        ) from error
    return model


def drop_initializer_inputs(model: ir.Model) -> ir.Model:
    """Remove initializers from the inputs below IR version 4, which required them there."""
    if (model.ir_version or 0) < _FIRST_OVERRIDABLE_IR:
        inputs = model.graph.inputs
        kept = [value for value in inputs if not value.is_initializer()]
        inputs.clear()
        inputs.extend(kept)
        model.ir_version = _FIRST_OVERRIDABLE_IR
    return model


def clear_negative_sizes(model: ir.Model) -> ir.Model:
    """Replace sizes below zero, which older exporters write for unknown ones, by unknown."""
    for graph in [model.graph, *model.graph.subgraphs()]:
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.outputs, *made):
            shape = value.shape
            if shape is not None and any(isinstance(n, int) and n < 0 for n in shape):
                sizes = [None if isinstance(n, int) and n < 0 else n for n in shape]
                value.shape = ir.Shape(sizes)
    return model


def inline_functions(model: ir.Model) -> ir.Model:
    """Replace calls of model-local functions by their bodies, each node with its opset.

    A body may be written in another opset than the model: each node of the default domain gets its
    opset as `node.version`, which `upgrade_opset` reads. Calls of domain `onward` stay, with their
    bodies: `composites.inline_calls` upgrades those when it inlines them.
    """
    if not model.functions:
        return model
    _check_functions(model)
    kept = _composites(model)
    for key, function in model.functions.items():
        if key in kept:
            continue
        nodes = ir.traversal.RecursiveGraphIterator(function)
        _set_versions(nodes, function.opset_imports.get("", 1))
        _separate_outputs(function)
        for domain, version in function.opset_imports.items():
            known = model.opset_imports.setdefault(domain, version)
            if domain != "" and known != version:
                raise InvalidModel(
                    f"function {function.domain}::{function.name} imports {domain} {version}, "
                    f"the model imports {domain} {known}\nimport one version of it"
                )
        function.opset_imports.update(model.opset_imports)
    _set_versions(nodes_of(model), model.opset_imports[""])
    for node in [node for graph in model.graphs() for node in graph]:
        called = model.functions.get(node.op_identifier())
        if called is not None and called.identifier() not in kept:
            node.resize_outputs(max(len(node.outputs), len(called.outputs)))
    common.InlinePass(lambda function: function.identifier() not in kept)(model)
    used_functions = {node.op_identifier() for node in nodes_of(model)}
    for key in [key for key in model.functions if key not in used_functions]:
        del model.functions[key]
    used = {node.domain for node in nodes_of(model)}
    for domain in [domain for domain in model.opset_imports if domain and domain not in used]:
        del model.opset_imports[domain]
    return model


def _composites(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """The functions of domain `onward` whose calls may stay: bodies of standard operators."""
    found = {
        key
        for key, function in model.functions.items()
        if function.domain == COMPOSITES
        and set(function.opset_imports) == {""}
        and all(node.domain == "" for node in walk(function.graph))
    }
    for node in nodes_of(model):
        key = node.op_identifier()
        if key in found:
            formal = model.functions[key]
            fits = len(node.inputs) <= len(formal.inputs)
            if not fits or len(node.outputs) > len(formal.outputs):
                found.remove(key)
    return found


def _set_versions(nodes: Iterator[ir.Node], version: int) -> None:
    for node in nodes:
        if node.domain == "":
            node.version = version


def _separate_outputs(function: ir.Function) -> None:
    """Let a function that returns an input, or one value twice, return an Identity of it."""
    seen: set[ir.Value] = set(function.inputs)
    for index, output in enumerate(function.outputs):
        if output in seen:
            copy = ir.node("Identity", [output])
            function.append(copy)
            function.outputs[index] = copy.outputs[0]
        seen.add(output)


def _check_functions(model: ir.Model) -> None:
    """Refuse functions that call themselves, and calls that would inline to too many nodes."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    open_calls: list[ir.OperatorIdentifier] = []

    def size(function: ir.Function) -> int:
        identifier = function.identifier()
        if identifier in open_calls:
            raise InvalidModel(f"function {function.domain}::{function.name} calls itself")
        if identifier not in sizes:
            open_calls.append(identifier)
            sizes[identifier] = total(ir.traversal.RecursiveGraphIterator(function))
            open_calls.pop()
        return sizes[identifier]

    def total(nodes: Iterator[ir.Node]) -> int:
        called = (model.functions.get(node.op_identifier()) for node in nodes)
        return sum(1 if function is None else size(function) for function in called)

    nodes = total(nodes_of(model))
    if nodes > _MOST_INLINED:
        raise UnsafeModel(
            f"the model's functions inline to {nodes} nodes, more than {_MOST_INLINED}\n"
            "raise the limit only for a model that you trust"
        )


def name_values(model: ir.Model) -> ir.Model:
    """Give every node and value a unique name; an omitted output stays without one."""
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    seen = {*model.graph.inputs, *model.graph.outputs}
    names = Names(model)

    def make_unique(value: ir.Value, wish: str) -> None:
        if value in seen:
            return
        seen.add(value)
        if not value.name or value.name in taken:
            rename(value, names.fresh(value.name or wish))
        taken.add(value.name)

    node_names: set[str] = set()
    for graph in [model.graph, *model.graph.subgraphs()]:
        for value in (*graph.inputs, *tuple(graph.initializers.values())):
            make_unique(value, "value")
        for node in graph:
            if not node.name or node.name in node_names:
                node.name = names.fresh(node.name or node.op_type)
            node_names.add(node.name)
            for value in node.outputs:
                if value.name or value.uses() or value.is_graph_output():
                    make_unique(value, f"{node.name}/output")
                else:
                    value.name = ""
            drop_trailing_omitted(node)
    return model


def drop_trailing_omitted(node: ir.Node) -> None:
    """Drop the omitted inputs and outputs at the end of a node's lists."""
    inputs, outputs = len(node.inputs), len(node.outputs)
    if inputs and node.inputs[-1] is not None and outputs and node.outputs[-1].name:
        return
    while inputs and node.inputs[inputs - 1] is None:
        inputs -= 1
    while outputs > 1 and not node.outputs[outputs - 1].name:
        outputs -= 1
    node.resize_inputs(inputs)
    node.resize_outputs(outputs)


def lift_constants(model: ir.Model) -> ir.Model:
    """Turn Constant nodes into initializers of their graph."""
    names = Names(model)
    for node in list(nodes_of(model)):
        if node.op_type == "Constant" and node.domain == "":
            tensor = constant_tensor(node)
            op = Ops()
            replace(node, [op.constant(tensor)], op, names)
    return model


def constant_tensor(node: ir.Node) -> ir.TensorProtocol:
    """The tensor of a Constant node, whichever attribute holds it."""
    if len(node.attributes) != 1:
        raise InvalidModel(
            f"Constant must have one attribute, not {len(node.attributes)} (node {node.name!r})"
        )
    (attribute,) = node.attributes.values()
    if attribute.name == "value":
        return attribute.as_tensor()
    if attribute.name in ("value_float", "value_floats"):
        return ir.tensor(np.asarray(attribute.value, np.float32))
    if attribute.name in ("value_int", "value_ints"):
        return ir.tensor(np.asarray(attribute.value, np.int64))
    if attribute.name in ("value_string", "value_strings"):
        return _string_tensor(attribute.value)
    raise InvalidModel(f"Constant has no attribute {attribute.name!r} (node {node.name!r})")


def _string_tensor(value: str | Sequence[str]) -> ir.StringTensor:
    texts = [value] if isinstance(value, str) else list(value)
    shape = ir.Shape([] if isinstance(value, str) else [len(texts)])
    return ir.StringTensor([text.encode() for text in texts], shape=shape)


def fill_default_attributes(model: ir.Model) -> ir.Model:
    """Write the schema's default attributes out on every node."""
    for node in nodes_of(model):
        fill_defaults(node, model.opset_imports.get(node.domain, 1))
    return model


def fill_defaults(node: ir.Node, version: int) -> None:
    """Write the schema's default attributes out on one node."""
    for attribute in _default_attributes(node.op_type, version, node.domain):
        if attribute.name not in node.attributes:
            node.attributes[attribute.name] = attribute


@functools.cache
def _default_attributes(operator: str, version: int, domain: str) -> tuple[ir.Attr, ...]:
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return ()
    defaults = [attribute.default_value for attribute in schema.attributes.values()]
    return tuple(ir.serde.deserialize_attribute(proto) for proto in defaults if proto.type)


def resolve_cast_like(model: ir.Model) -> ir.Model:
    """CastLike(x, y) = Cast(x, to=type of y), where that type is known."""
    for node in nodes_of(model):
        if node.op_type == "CastLike" and node.domain == "":
            target = node.inputs[1]
            if target is not None and target.dtype is not None:
                node.op_type = "Cast"
                node.attributes["to"] = ir.AttrInt64("to", int(target.dtype))
                node.resize_inputs(1)
    return model
