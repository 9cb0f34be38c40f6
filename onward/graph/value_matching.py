"""Match the values of two models by how they are computed, else by name.

Tools that rewrite a model rename values, number them again, or keep them. A value is first paired
with one that is computed by the same operators from the same inputs and weights; what is then left
(behind a changed weight, a fusion, a quantised layer) is paired by name.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.scopes import bodies

Prints = dict[ir.Value, str]  # a value's fingerprint: how it is computed


@dataclass(frozen=True)
class ValuePair:
    """A value of the first model and the value of the second that should be equal."""

    first: ir.Value
    second: ir.Value
    by_name: bool


def pair_values(a: ir.Model, b: ir.Model, inputs: Mapping[str, str]) -> list[ValuePair]:
    """The values of both models in pairs, in the first one's order.

    `inputs` maps the first one's inputs to the second's. Values inside subgraphs and functions are
    not matched.
    """
    leaves_a, leaves_b = _leaves(a, b, inputs)
    prints_a, prints_b = _prints(a.graph, leaves_a), _prints(b.graph, leaves_b)
    partner: dict[ir.Value, tuple[ir.Value, bool]] = {}
    taken: set[ir.Value] = set()
    alike = _by_print(prints_b)
    for print_, values in _by_print(prints_a).items():
        for first, second in zip(values, alike.get(print_, ())):
            partner[first] = (second, first.name == second.name)
            taken.add(second)
    named = {value.name: value for value in prints_b if value not in taken}
    for first in prints_a:
        second_named = named.get(first.name)
        if first not in partner and second_named is not None and _names_match(first, second_named):
            partner[first] = (second_named, True)
    return [ValuePair(value, *partner[value]) for value in prints_a if value in partner]


def _names_match(a: ir.Value, b: ir.Value) -> bool:
    """Whether equal names mean equal values: a bare number does only for the same operator."""
    name, makers = str(a.name), (a.producer(), b.producer())
    if not name.strip("_").isdecimal():
        return True
    return makers[0] is not None and makers[1] is not None and _kind(makers[0]) == _kind(makers[1])


def _kind(node: ir.Node) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _by_print(prints: Prints) -> dict[str, list[ir.Value]]:
    grouped: dict[str, list[ir.Value]] = defaultdict(list)
    for value, print_ in prints.items():
        grouped[print_].append(value)
    return grouped


def _leaves(a: ir.Model, b: ir.Model, inputs: Mapping[str, str]) -> tuple[Prints, Prints]:
    """Fingerprints of inputs (by pair) and of weights (by content, by name, else by shape)."""
    contents_a, contents_b = _contents(a.graph), _contents(b.graph)
    shared = set(contents_a.values()) & set(contents_b.values())
    names = set(a.graph.initializers) & set(b.graph.initializers)

    def weights(contents: Prints) -> Prints:
        found = {}
        for value, content in contents.items():
            tensor = value.const_value
            shape = f"{tensor.dtype.name} {tensor.shape}" if tensor is not None else ""
            name = f"weight {value.name} {shape}" if value.name in names else f"weight {shape}"
            found[value] = content if content in shared else name
        return found

    leaves_a, leaves_b = weights(contents_a), weights(contents_b)
    leaves_a |= {value: f"input {value.name}" for value in a.graph.inputs}
    back = {other: name for name, other in inputs.items()}
    leaves_b |= {v: f"input {back.get(str(v.name), v.name)}" for v in b.graph.inputs}
    return leaves_a, leaves_b


def _contents(graph: ir.Graph) -> Prints:
    found = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None:
            found[value] = _tensor_print(tensor)
    return found


def _tensor_print(tensor: ir.TensorProtocol) -> str:
    digest = hashlib.blake2b(f"{tensor.dtype.name} {tensor.shape}".encode(), digest_size=16)
    if tensor.dtype == ir.DataType.STRING:
        digest.update(repr(tensor.numpy().tolist()).encode())
    else:
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _prints(graph: ir.Graph, leaves: Prints) -> Prints:
    """The fingerprints of all outputs of the graph's nodes, in order."""
    known, made = dict(leaves), dict[ir.Value, str]()
    for node in graph:
        inputs = [known.get(v, f"? {v.name}") if v is not None else "" for v in node.inputs]
        attributes = sorted(f"{name}={_attribute(a)}" for name, a in node.attributes.items())
        whole = [*_kind(node), *inputs, *attributes]
        if bodies(node):  # captured values are not followed: such a node only matches its own name
            whole.append(str(node.name))
        digest = hashlib.blake2b("\0".join(whole).encode(), digest_size=16).hexdigest()
        for place, value in enumerate(node.outputs):
            if value.name:
                made[value] = known[value] = f"{digest} {place}"
    return made


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_print(attribute.as_tensor())
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph"
    return str(attribute.value)
