"""Restore a model's parameters as they were in torch, before its exporter changed them.

    guesses = separate_and_tie(model)

separates parameters that were merged because they were equal (the ones and zeros of new layers),
and ties those that were duplicated because they are also used transposed (embeddings). The model's
results do not change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import walk
from onward.message_text import list_names, suggest_names
from onward.passes.exporters.merged_parameters import (
    is_from_torchscript,
    is_uniform,
    module_of,
    scope,
    separate_merged,
)
from onward.passes.exporters.provenance import (
    CALL,
    SOURCES,
    Provenance,
    arguments,
    missing_parameters,
    sources,
)
from onward.passes.rewrite import Names

Readers = dict[ir.Value, list[tuple[ir.Node, int]]]  # value -> nodes and which of their inputs
Ties = dict[str, tuple[str, bool]]  # a copy -> its parameter, whether transposed

_COMPUTED = re.compile(r"onnx::\w+|\d+")  # the older exporter's names for computed weights


class Guesses(NamedTuple):
    """Parameters about which the model is not certain: a name -> the parameter that it equals."""

    separate: dict[str, str]
    tied: dict[str, str]


def separate_and_tie(
    model: ir.Model, separate: Collection[str] = (), tied: Sequence[Sequence[str]] | None = None
) -> Guesses:
    """Separate and tie parameters, in place; copies that are named in `separate` stay separate.

    With `tied`, groups of names, nothing is guessed where the model is not certain: each group is
    one parameter, the others are separate.
    """
    uncertain = split_merged_parameters(model)
    certain = find_ties(model)
    likely, unlikely = _transposed_copies(model) if tied is None else ({}, {})
    asked = _asked_ties(model, tied or ())
    for name, (parameter, transposed) in {**likely, **certain, **asked}.items():
        if name not in separate or name in asked:
            _tie(model.graph, name, parameter, transposed)
    if tied is not None:
        return Guesses({}, {})
    guessed = {name: parameter for name, (parameter, _) in likely.items() if name not in separate}
    return Guesses({**uncertain, **unlikely}, guessed)


# -- merged parameters -----------------------------------------------------------------------------


def split_merged_parameters(model: ir.Model) -> dict[str, str]:
    """Give each merged parameter its own tensor again, in place.

    Returns those that may have been shared in torch: name -> the parameter that it equals.
    """
    uncertain = separate_merged(model)
    left = missing_parameters(model)
    if not left:
        return uncertain
    names = Names(model)
    for name, found in _borrowed(model, {call: name for name, call in left.items()}).items():
        if len(found) > 1:  # calls disagree
            continue
        [(value, places)] = found.items()
        wish = names.fresh(f"{name}/{value.name}" if sources(value) else name)
        own = ir.val(wish, type=value.type, shape=value.shape)
        if value.const_value is not None:  # a new tensor object, because it has its own name
            array, dtype = value.const_value.numpy(), value.const_value.dtype
            own.const_value = ir.Tensor(array, dtype=dtype, name=wish)
        own.metadata_props.update(value.metadata_props)
        if sources(value):
            own.metadata_props[SOURCES] = repr([name])
        model.graph.register_initializer(own)
        for node, index in places:
            node.replace_input_with(index, own)
    return uncertain


def _borrowed(model: ir.Model, missing: Mapping[str, str]) -> dict[str, Readers]:
    """Missing parameters, and the tensor that nodes read instead of each.

    Such a tensor is a parameter, but not an argument of the node's call. Which parameter it
    replaces is known if a call has as many missing arguments as it reads such tensors.
    """
    provenance, nodes = Provenance(model), list(walk(model.graph))
    owners = {
        value: {provenance.parameters[name] for name in provenance.origins(value)}
        for value in model.graph.initializers.values()
    }
    reads = [
        (node, index, value, owners[value].isdisjoint(arguments(node)))
        for node in nodes
        for index, value in enumerate(node.inputs)
        if value is not None and owners.get(value)
    ]
    in_own_calls = {value for _, _, value, is_borrowed in reads if not is_borrowed}
    calls: dict[str, Readers] = {}
    for node, index, value, is_borrowed in reads:
        if is_borrowed and value in in_own_calls:
            readers = calls.setdefault(node.metadata_props.get(CALL, ""), {})
            readers.setdefault(value, []).append((node, index))
    found: dict[str, Readers] = {}
    for readers in calls.values():
        [(node, _), *_] = next(iter(readers.values()))
        lost = [missing[each] for each in arguments(node) if each in missing]
        for name, value in zip(lost, readers) if len(lost) == len(readers) else ():
            found.setdefault(name, {}).setdefault(value, []).extend(readers[value])
    return found


# -- duplicated parameters -------------------------------------------------------------------------


def find_ties(model: ir.Model) -> Ties:
    """Initializers that are copies of a parameter of the model: its name, whether transposed.

    If a program uses a parameter twice, once transposed, the exporter makes two tensors of it. A
    tensor that equals its own transpose is left out.
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


def _transposed_copies(model: ir.Model) -> tuple[Ties, dict[str, str]]:
    """Parameters of which the older exporter has kept a transposed copy too: likely ties, others.

    Whether they were one parameter or two equal ones is not recorded. Two that are equal when
    transposed were one (an embedding and the last layer), unless the second belongs to a module
    with other parameters and the first is not an embedding table: then they are likely to be copies
    of a layer.
    """
    if not is_from_torchscript(model):
        return {}, {}
    likely: Ties = {}
    unlikely = {}
    graph = model.graph
    named = [v for v in graph.initializers.values() if not _COMPUTED.fullmatch(str(v.name))]
    for copy in graph.initializers.values():
        if not _COMPUTED.fullmatch(str(copy.name)) or is_uniform(copy):
            continue
        for value in named:
            if _is_transposed(copy.const_value, value.const_value):
                if _is_table(value) or not _has_parameters(copy, named):
                    likely.setdefault(str(copy.name), (str(value.name), True))
                else:
                    unlikely[str(copy.name)] = str(value.name)
    return likely, unlikely


def _is_table(value: ir.Value) -> bool:
    return any(node.op_type == "Gather" and index == 0 for node, index in value.uses())


def _has_parameters(copy: ir.Value, named: Sequence[ir.Value]) -> bool:
    """Whether the modules that read a value have other parameters."""
    modules = {module_of(scope(node)) for node, _ in copy.uses()} - {""}
    return any(str(value.name).startswith(f"{module}.") for value in named for module in modules)


def _asked_ties(model: ir.Model, groups: Sequence[Sequence[str]]) -> Ties:
    """The ties that a user asks for: the first of a group is the parameter, the others copies."""
    found: Ties = {}
    known = model.graph.initializers
    seen: set[str] = set()
    for group in groups:
        for name in group:
            if name in seen:
                raise OptionError(
                    f"tied: {name!r} is named twice\nput all copies of a parameter into one group"
                )
            seen.add(name)
            if name not in known:
                raise OptionError(
                    f"tied: {name!r} is not a weight of the model\n{suggest_names(name, known)}"
                )
        parameter, *copies = group
        for name in copies:
            a, b = known[name].const_value, known[parameter].const_value
            transposed = _is_transposed(a, b)
            if transposed is None and not _is_equal(a, b):
                raise OptionError(
                    f"tied: {list_names([parameter, name])} do not hold the same numbers\n"
                    "only copies of one parameter, which may be transposed, are trained as one"
                )
            found[name] = (parameter, bool(transposed))
    return found


def _is_equal(a: ir.TensorProtocol | None, b: ir.TensorProtocol | None) -> bool:
    return a is not None and b is not None and np.array_equal(a.numpy(), b.numpy())


def _is_transposed(
    copy: ir.TensorProtocol | None, parameter: ir.TensorProtocol | None
) -> bool | None:
    """Whether a copy is a transposed one; None if it is not a copy, or equals its transpose."""
    if copy is None or parameter is None or copy.dtype != parameter.dtype:
        return None
    a, b = copy.numpy(), parameter.numpy()
    same = np.array_equal(a, b)
    transposed = b.ndim == 2 and np.array_equal(a, b.T)
    return None if same == transposed else transposed


def _tie(graph: ir.Graph, name: str, parameter: str, transposed: bool) -> None:
    """Compute a copy of a parameter from it."""
    copy = graph.initializers.pop(name)
    operator, attributes = ("Transpose", {"perm": [1, 0]}) if transposed else ("Identity", {})
    node = ir.node(operator, [graph.initializers[parameter]], attributes, name=f"{name}/tied")
    result = node.outputs[0]
    result.name, result.type, result.shape = name, copy.type, copy.shape
    ir.convenience.replace_all_uses_with(copy, result, replace_graph_outputs=True)
    graph.insert_before(graph[0], node)
