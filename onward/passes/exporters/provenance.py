"""Which parameters a model's tensors come from, by the metadata of torch's exporter.

torch.onnx.export (dynamo=True) writes metadata: to the graph, the signature of the program, a line
for each tensor (`p_fc_weight: PARAMETER target='fc.weight'`); to each tensor that it kept, its
kind; to each tensor that it computed, the names of its sources; to each node, the call of the
program that it belongs to, with its arguments (`%p_fc_weight`).
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Collection

import onnx_ir as ir

from onward.graph.scopes import graphs_of, walk
from onward.message_text import list_names
from onward.passes.exporters.merged_parameters import is_uniform

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SOURCES = "pkg.onnxscript.optimizer.folded_from"
CALL = "pkg.torch.onnx.fx_node"
_TENSOR = re.compile(r"^(\w+): ([A-Z_]+) target='([^']+)'", re.MULTILINE)
_ARGUMENT = re.compile(r"%(\w+)")

log = logging.getLogger("onward")


class Provenance:
    """The exporter's metadata about the tensors of a model; most models have none."""

    def __init__(self, model: ir.Model) -> None:
        signature = _TENSOR.findall(model.graph.metadata_props.get(_SIGNATURE, ""))
        self._kinds = {name: kind for _, kind, name in signature}
        self._initializers = model.graph.initializers
        self.parameters = {name: call for call, kind, name in signature if kind == "PARAMETER"}

    def origins(self, value: ir.Value) -> set[str]:
        """The parameters that an initializer is, or was computed from."""
        found = self.parameters.keys() & {str(value.name), *sources(value)}
        return {name for name in found if name == value.name or not self._is_fill(value, name)}

    def is_parameter(self, value: ir.Value) -> bool | None:
        """Whether an initializer is a parameter, or made from some; None without metadata."""
        kind = value.metadata_props.get(_KIND, self._kinds.get(str(value.name)))
        if kind is None and sources(value) and self.parameters:
            return bool(self.origins(value))
        return None if kind is None else kind == "PARAMETER"

    def _is_fill(self, value: ir.Value, name: str) -> bool:
        """Whether a tensor depends only on a parameter's shape: zeros_like and the like."""
        source = self._initializers.get(name)
        return source is not None and is_uniform(value) and not is_uniform(source)


def sources(value: ir.Value) -> list[str]:
    """The names of the tensors from which the exporter computed this one."""
    try:
        names = ast.literal_eval(value.metadata_props.get(SOURCES, "[]"))
    except (ValueError, SyntaxError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def arguments(node: ir.Node) -> list[str]:
    """The arguments of the program's call that a node belongs to."""
    return list(dict.fromkeys(_ARGUMENT.findall(node.metadata_props.get(CALL, ""))))


def missing_parameters(model: ir.Model) -> dict[str, str]:
    """Parameters without an initializer, and their names in calls."""
    left = dict(Provenance(model).parameters)
    for graph in graphs_of(model):
        for name, value in graph.initializers.items():
            for each in (str(name), *sources(value)):
                left.pop(each, None)
    return left


def warn_of_changes(model: ir.Model, names: Collection[str]) -> None:
    """Log which parameters will not be trained as in torch, because the exporter changed them.

    `names` are the initializers to train; changes of others do not matter.
    """
    trained = set(names)
    changes = {
        "missing or merged with others": _missing(model, trained),
        "in several tensors, each trained separately": _copied(model, trained),
    }
    text = "; ".join(f"{what}: {list_names(which)}" for what, which in changes.items() if which)
    if text:
        log.warning("torch's exporter changed parameters (%s); export with optimize=False", text)


def _missing(model: ir.Model, names: Collection[str]) -> list[str]:
    """Missing parameters that are arguments of a call which reads one of the names.

    Parameters that the program never used, or used under another name, are not listed.
    """
    left = missing_parameters(model)
    if not left:
        return []
    readers = (
        node
        for node in walk(model.graph)
        if any(value is not None and value.name in names for value in node.inputs)
    )
    used = {argument for node in readers for argument in arguments(node)}
    return [name for name, call in left.items() if call in used]


def _copied(model: ir.Model, names: Collection[str]) -> list[str]:
    """Parameters from which several of the named initializers come."""
    provenance = Provenance(model)
    counts = dict.fromkeys(provenance.parameters, 0)
    for graph in graphs_of(model) if counts else ():
        for value in graph.initializers.values():
            for each in provenance.origins(value) if value.name in names else ():
                counts[each] += 1
    return [name for name, count in counts.items() if count > 1]
