"""Upgrade every node of the default domain to the newest opset, one version at a time.

ONNX's converter works on a protobuf message and lacks many operators, onnxscript's begins at 18.
Here an adapter is one short function (`upgrades/`), keyed by the operator and its new version.
"""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.shapes.declared import infer_from_inputs
from onward.passes.rewrite import Names, Ops, Replacement, insert_made_nodes, nodes_of, substitute
from onward.passes.upgrades import attributes_to_inputs, changed_operators, opsets_1_to_7
from onward.passes.upgrades.unchanged_operators import COMPATIBLE, NEWEST, REVERSIBLE

ADAPTERS = opsets_1_to_7.adapter | attributes_to_inputs.adapter | changed_operators.adapter


def upgrade_opset(model: ir.Model) -> ir.Model:
    """Rewrite each node from its opset (`node.version`, else the model's) to the newest known."""
    return upgrade_to(model, newest_opset())


def upgrade_to(model: ir.Model, target: int) -> ir.Model:
    """Rewrite each node from its opset (`node.version`, else the model's) to opset `target`."""
    opset = model.opset_imports[""]
    stale = [node for node in nodes_of(model) if node.domain == "" and _is_stale(node, opset)]
    adapted = any(_is_adapted(node.op_type, node.version or opset) for node in stale)
    if adapted and all(node.version in (None, opset) for node in stale):
        infer_from_inputs(model)  # some old forms are known by their ranks only
    names = Names(model)
    for node in stale:
        _upgrade_node(node, node.version or opset, target, names)
    for node in nodes_of(model):
        node.version = None
    if opset < target:
        model.opset_imports[""] = target
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", target)])
    model.ir_version = max(model.ir_version or 0, needed)
    return model


def newest_opset() -> int:
    """The newest opset that both this code and the installed onnx know."""
    return min(NEWEST, onnx.defs.onnx_opset_version())


@functools.cache
def versions_of(operator: str) -> tuple[int, ...]:
    """The opsets in which an operator of the default domain changed, in order."""
    return tuple(sorted(since for name, since in _history() if name == operator))


@functools.cache
def _history() -> frozenset[tuple[str, int]]:
    schemas = onnx.defs.get_all_schemas_with_history()
    return frozenset((s.name, s.since_version) for s in schemas if s.domain == "")


@functools.cache
def is_compatible(operator: str, version: int) -> bool:
    """Whether an older node needs no change in opset `version`."""
    return operator in COMPATIBLE.get(version, "").split()


@functools.cache
def is_reversible(operator: str, version: int) -> bool:
    """Whether a node of opset `version` means the same one version earlier, attributes aside."""
    listed = REVERSIBLE.get(version, "").split()
    return operator in listed or is_compatible(operator, version)


def _is_stale(node: ir.Node, opset: int) -> bool:
    version = node.version or opset
    return any(since > version for since in versions_of(node.op_type)) or version < 6


@functools.cache
def _is_adapted(operator: str, version: int) -> bool:
    """Whether an adapter must rewrite a node of opset `version`."""
    later = [since for since in versions_of(operator) if since > version]
    return any(
        not is_compatible(operator, since) and ADAPTERS.find("", operator, since) is not None
        for since in later
    )


def _upgrade_node(node: ir.Node, version: int, target: int, names: Names) -> None:
    node.attributes.pop("consumed_inputs", None)  # a hint of opsets 1 to 5
    while True:
        later = [since for since in versions_of(node.op_type) if version < since <= target]
        if not later:
            return
        version = later[0]
        if _upgrade_once(node, version, names):
            return


def _upgrade_once(node: ir.Node, version: int, names: Names) -> bool:
    """Upgrade by one version; whether the node was replaced (by nodes of the newest opset)."""
    adapter = ADAPTERS.find("", node.op_type, version)
    if adapter is None or is_compatible(node.op_type, version):
        return False
    op = Ops()
    try:
        found: Replacement = adapter(op, node)
    except UnsupportedModel:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UnsupportedModel(
            f"{node.op_type} breaks the rules of opsets before {version} (node {node.name!r})"
        ) from error
    graph = insert_made_nodes(node, op, names)
    if found is None:
        return False
    values = [found] if isinstance(found, ir.Value) else list(found)
    for old, new in zip(node.outputs, values, strict=False):
        substitute(old, new, names)
    graph.remove(node, safe=True)
    return True
