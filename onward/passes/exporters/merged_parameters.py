"""Separate parameters that torch's older exporter has merged.

torch.onnx.export(dynamo=False) keeps one of several parameters with equal contents (the ones and
zeros of new layers, copies of a layer) and makes the others from it:

    4.weight = Identity(1.weight)

A parameter that two modules share has one name, and both read it without an Identity. Weights that
were computed at export, such as transposed ones, have lost their names; both cases look alike:

    onnx::MatMul_11 = Identity(onnx::MatMul_10)

There the names of the nodes show which modules read them. A module that is called twice, and a
module that shares its bias too, share their weight; all others are taken for copies.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from onward.passes.value_facts import made_by

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"  # of the newer exporter
_UNNAMED = re.compile(r"onnx::\w+|\d+|/.*_output_\d+")  # values without a parameter's name
_COMPUTED = re.compile(r"onnx::\w+|\d+")  # ... that may be computed from parameters


def separate_merged(model: ir.Model) -> dict[str, str]:
    """Give each merged parameter its own tensor, in place.

    Returns those that may have been shared in torch: name -> the parameter that it equals.
    """
    graph, uncertain = model.graph, {}
    named = _parameter_names(model)
    for node in [node for node in graph if _copies_parameter(model, node)]:
        source, copy = node.inputs[0], node.outputs[0]
        assert source is not None and source.const_value is not None
        if _COMPUTED.fullmatch(str(copy.name)):
            if _is_shared(graph, source, copy, named):
                continue
            if not is_uniform(source):
                uncertain[str(copy.name)] = str(source.name)
        graph.remove(node)
        tensor = ir.Tensor(
            source.const_value.numpy(), dtype=source.const_value.dtype, name=copy.name
        )
        own = ir.val(str(copy.name), type=source.type, shape=tensor.shape, const_value=tensor)
        ir.convenience.replace_all_uses_with(copy, own)
        graph.register_initializer(own)
    return uncertain


def is_from_torchscript(model: ir.Model) -> bool:
    """Whether torch's older exporter wrote the model."""
    return model.producer_name == "pytorch" and _SIGNATURE not in model.graph.metadata_props


def is_uniform(value: ir.Value) -> bool:
    """Whether all elements of an initializer are equal, as in new layers."""
    if value.const_value is None:
        return False
    array = value.const_value.numpy()
    return bool(array.size and (array == array.flat[0]).all())


def scope(node: ir.Node) -> str:
    """The module call that a node belongs to: "/layers.0/norm" of /layers.0/norm/Mul."""
    return str(node.name or "").rpartition("/")[0]


def module_of(scope: str) -> str:
    """The path of a scope's module: "net.0.norm" of "/net/net.0/norm", as Sequential is named."""
    parts: list[str] = []
    for part in scope.split("/"):
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts += [part] if part else []
    return ".".join(parts)


def _copies_parameter(model: ir.Model, node: ir.Node) -> bool:
    """Whether a node makes a parameter from another one that it was merged with."""
    if node.op_type != "Identity" or node.domain != "" or node.inputs[0] is None:
        return False
    source, copy = node.inputs[0], node.outputs[0]
    if not source.is_initializer() or source.const_value is None or source.is_graph_input():
        return False
    if copy.is_graph_output() or not copy.uses():
        return False
    name = str(copy.name)
    if is_from_torchscript(model):
        return bool(_COMPUTED.fullmatch(name)) or not _UNNAMED.fullmatch(name)
    module = name.rpartition(".")[0]  # other tools may have rewritten the model since
    return bool(module) and all(module_of(scope(node)) == module for node, _ in copy.uses())


def _parameter_names(model: ir.Model) -> set[str]:
    """The names of parameters: initializers, and those that were merged with others."""
    copies = (node.outputs[0].name for node in model.graph if made_by(node.outputs[0], "Identity"))
    names = {*model.graph.initializers, *(str(name) for name in copies if name)}
    return {name for name in names if not _UNNAMED.fullmatch(name)}


def _is_shared(graph: ir.Graph, source: ir.Value, copy: ir.Value, named: set[str]) -> bool:
    """Whether two computed weights were one parameter, by the modules that read them."""
    firsts, seconds = ({scope(node) for node, _ in value.uses()} for value in (source, copy))
    firsts.discard("")
    if any(_is_in(module_of(second), name) for second in seconds for name in named):
        return False  # the second module has its own parameters
    if any(_is_called_again(first, second) for first in firsts for second in seconds):
        return True
    nodes = [node for node in graph if scope(node) in seconds]
    read = {str(value.name) for node in nodes for value in node.inputs if value is not None}
    return any(_is_in(module_of(first), name) for first in firsts for name in read & named)


def _is_in(module: str, name: str) -> bool:
    return bool(module) and name.startswith(f"{module}.")


def _is_called_again(first: str, second: str) -> bool:
    """Whether a scope is another call of the same module: "/layers.0_1" after "/layers.0"."""
    parts, others = first.split("/"), second.split("/")
    return len(parts) == len(others) and all(
        other == part or re.fullmatch(re.escape(part) + r"_\d+", other)
        for part, other in zip(parts, others)
    )
