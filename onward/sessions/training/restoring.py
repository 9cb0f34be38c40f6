"""Parameters as they were in torch, where its exporter has changed them and it can be seen how.

    restore(model)

parts those that became one tensor, being equal (the ones and zeros of fresh layers), and ties those
that became two, being used transposed as well (embeddings). The model computes what it computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onward.graph.scopes import walk
from onward.passes.rewrite import Names
from onward.sessions.training.provenance import CALL, SOURCES, Provenance, arguments, gone, sources

Readers = dict[ir.Value, list[tuple[ir.Node, int]]]  # value -> nodes and which of their inputs


def restore(model: ir.Model, apart: Collection[str] = ()) -> ir.Model:
    """Part and tie parameters, in place; copies that are named stay apart."""
    part(model)
    for name, (parameter, transposed) in ties(model).items():
        if name not in apart:
            _tie(model.graph, name, parameter, transposed)
    return model


# -- one tensor that was several -------------------------------------------------------------------


def part(model: ir.Model) -> ir.Model:
    """Give parameters that became one with another a tensor of their own again, in place."""
    left = gone(model)
    if not left:
        return model
    names = Names(model)
    for name, found in _borrowed(model, {call: name for name, call in left.items()}).items():
        if len(found) > 1:  # calls disagree
            continue
        [(value, places)] = found.items()
        wish = names.fresh(f"{name}/{value.name}" if sources(value) else name)
        own = ir.val(wish, type=value.type, shape=value.shape)
        if value.const_value is not None:  # a tensor of its own: it has its value's name
            array, dtype = value.const_value.numpy(), value.const_value.dtype
            own.const_value = ir.Tensor(array, dtype=dtype, name=wish)
        own.metadata_props.update(value.metadata_props)
        if sources(value):
            own.metadata_props[SOURCES] = repr([name])
        model.graph.register_initializer(own)
        for node, index in places:
            node.replace_input_with(index, own)
    return model


def _borrowed(model: ir.Model, missing: Mapping[str, str]) -> dict[str, Readers]:
    """Parameters that are missing, and the tensor that is read in the place of each.

    Such a tensor is a parameter that other nodes were called with, but not this one; whose place it
    takes, the call says, if it misses as many arguments as its nodes read such tensors.
    """
    said, nodes = Provenance(model), list(walk(model.graph))
    owners = {
        value: {said.parameters[name] for name in said.origins(value)}
        for value in model.graph.initializers.values()
    }
    reads = [
        (node, index, value, owners[value].isdisjoint(arguments(node)))
        for node in nodes
        for index, value in enumerate(node.inputs)
        if value is not None and owners.get(value)
    ]
    at_home = {value for _, _, value, is_strange in reads if not is_strange}
    calls: dict[str, Readers] = {}
    for node, index, value, is_strange in reads:
        if is_strange and value in at_home:
            readers = calls.setdefault(node.metadata_props.get(CALL, ""), {})
            readers.setdefault(value, []).append((node, index))
    found: dict[str, Readers] = {}
    for readers in calls.values():
        [(node, _), *_] = next(iter(readers.values()))
        lost = [missing[each] for each in arguments(node) if each in missing]
        for name, value in zip(lost, readers) if len(lost) == len(readers) else ():
            found.setdefault(name, {}).setdefault(value, []).extend(readers[value])
    return found


# -- several tensors that were one -----------------------------------------------------------------


def ties(model: ir.Model) -> dict[str, tuple[str, bool]]:
    """Initializers that are copies of a parameter of the model: its name, whether transposed.

    Where a program uses a parameter twice, once transposed, the exporter makes two tensors of it.
    One that is equal to its own transpose does not tell which copy it is, and is left out.
    """
    parameters, initializers = Provenance(model).parameters, model.graph.initializers
    found = {}
    for name, value in initializers.items():
        for source in sources(value):
            if source in parameters and source in initializers and source != name:
                transposed = _is_transposed(value.const_value, initializers[source].const_value)
                if transposed is not None:
                    found[str(name)] = (source, transposed)
    return found


def _is_transposed(
    copy: ir.TensorProtocol | None, parameter: ir.TensorProtocol | None
) -> bool | None:
    """Whether a copy is a transposed one; None: it is no copy, or may be both."""
    if copy is None or parameter is None or copy.dtype != parameter.dtype:
        return None
    a, b = copy.numpy(), parameter.numpy()
    same = np.array_equal(a, b)
    transposed = b.ndim == 2 and np.array_equal(a, b.T)
    return None if same == transposed else transposed


def _tie(graph: ir.Graph, name: str, parameter: str, transposed: bool) -> None:
    """Let a copy of a parameter be computed from it."""
    copy = graph.initializers.pop(name)
    operator, attributes = ("Transpose", {"perm": [1, 0]}) if transposed else ("Identity", {})
    node = ir.node(operator, [graph.initializers[parameter]], attributes, name=f"{name}/tied")
    result = node.outputs[0]
    result.name, result.type, result.shape = name, copy.type, copy.shape
    ir.convenience.replace_all_uses_with(copy, result, replace_graph_outputs=True)
    graph.insert_before(graph[0], node)
