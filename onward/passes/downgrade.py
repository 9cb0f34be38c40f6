"""Lower a model to an older opset that the engine supports.

A node fits an older opset if it means the same there: every change in between was compatible, new
attributes have their default values, and the older schema allows its types.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

import onnx
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.scopes import COMPOSITES, walk
from onward.passes.composites import FIRST_IR, has_calls
from onward.passes.rewrite import nodes_of
from onward.passes.upgrade import is_reversible, versions_of
from onward.passes.value_facts import attribute, is_float

STOCK_OPSET = 26  # the newest that stock onnxruntime loads
_OLDEST = 13


def fits_opset(node: ir.Node, opset: int, newest: int) -> bool:
    """Whether a node, written in `opset`, means the same in opset `newest`."""
    return _misfit(node, opset, newest) is None


def lower_opset(model: ir.Model, newest: int, oldest: int = _OLDEST) -> ir.Model:
    """Lower a model to the oldest opset that it fits; refuse one that does not fit `newest`.

    The oldest, because engines keep their old kernels and often lack the newest. The bodies of
    composites are lowered too, so that they can be inlined.
    """
    opset = model.opset_imports.get("", newest)
    composites = [
        function
        for function in model.functions.values()
        if function.domain == COMPOSITES and function.opset_imports.get("") == opset
    ]
    nodes = [*nodes_of(model), *(node for f in composites for node in walk(f.graph))]
    target = oldest
    fits: dict[Hashable, int] = {}  # a cache: most nodes are like an earlier one
    for node in nodes:
        if node.domain == "" and _last_change(node.op_type, opset) > target:
            key = _fit_key(node, opset)
            if key not in fits:
                fits[key] = _oldest_fit(node, opset)
            target = max(target, fits[key])
        if target > newest:
            misfit = _misfit(node, opset, newest)
            raise UnsupportedModel(
                f"{node.op_type} of opset {opset} does not fit opset {newest}: {misfit} "
                f"(node {node.name!r})\nlist a provider that runs opset {opset}"
            )
    if target >= opset:
        return model
    for node in nodes:
        if node.domain == "":
            for name in _added(node.op_type, opset, target):
                node.attributes.pop(name, None)
    for imports in (model.opset_imports, *(f.opset_imports for f in composites)):
        imports[""] = target
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", target)])
    needed = max(needed, FIRST_IR) if has_calls(model) else needed
    model.ir_version = min(model.ir_version or needed, needed)
    return model


@functools.cache
def _last_change(operator: str, opset: int) -> int:
    """The opset of an operator's last change up to `opset`: the node fits from there on."""
    versions = [version for version in versions_of(operator) if version <= opset]
    return max(versions, default=0)


def _fit_key(node: ir.Node, opset: int) -> Hashable:
    """What decides how far back a node fits: its types, and the attributes that were added."""
    values = (*node.inputs, None, *node.outputs)
    types = [None if value is None or not value.name else value.type for value in values]
    later = (*_added(node.op_type, opset, versions_of(node.op_type)[0]), "fmod")
    given = [repr(node.attributes[name].value) for name in later if name in node.attributes]
    return node.op_type, tuple(types), tuple(given)


def _oldest_fit(node: ir.Node, opset: int) -> int:
    """The oldest opset, from _OLDEST on, that a node fits."""
    versions = versions_of(node.op_type)
    found = opset if versions else _OLDEST  # an operator that ONNX does not know needs none
    for version in reversed(versions):
        if version > opset:
            continue
        found = max(version, _OLDEST)  # the same schema holds from here on
        if version <= _OLDEST or _misfit(node, opset, version - 1) is not None:
            break
    return found


def _misfit(node: ir.Node, opset: int, newest: int) -> str | None:
    """Why a node does not fit an older opset; None if it fits. Subgraphs are not looked at."""
    if node.domain != "":
        return None
    new, old = _schema(node.op_type, opset), _schema(node.op_type, newest)
    if old is None or new is None:
        return "it does not exist there" if new is not None else None
    for version in versions_of(node.op_type):
        if newest < version <= opset and not is_reversible(node.op_type, version):
            return f"its meaning changed in opset {version}"
    if new.since_version == old.since_version:
        return None
    for name in _added(node.op_type, opset, newest):
        given = node.attributes.get(name)
        if given is not None and not _is_default(given, new):
            return f"attribute {name} is not at its default"
    if node.op_type == "Mod" and not attribute(node, "fmod", 0) and is_float(node.inputs[0]):
        return "fmod=0 of floats"
    return _type_misfit(node, old)


def _type_misfit(node: ir.Node, old: onnx.defs.OpSchema) -> str | None:
    for values, side in ((node.inputs, "inputs"), (node.outputs, "outputs")):
        for index, value in enumerate(values):
            if value is None or value.type is None or not value.name:
                continue
            allowed = _allowed(old.name, old.since_version, side, index)
            if allowed is None:
                return f"it has no input or output {index}"
            if allowed.isdisjoint(_type_names(value.type)):
                return f"it does not take {value.type}"
    return None


@functools.cache
def _allowed(operator: str, version: int, side: str, index: int) -> frozenset[str] | None:
    """The types that an operator's input or output allows; None if that version has no such one."""
    formal = getattr(onnx.defs.get_schema(operator, version, ""), side)
    if index >= len(formal) and not _is_variadic(formal):
        return None
    return frozenset(formal[min(index, len(formal) - 1)].types)


def _is_variadic(formal: Sequence[onnx.defs.OpSchema.FormalParameter]) -> bool:
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(formal) and formal[-1].option == variadic


def _type_names(kind: ir.TypeProtocol) -> list[str]:
    """The type as schemas write it."""
    if isinstance(kind, ir.SequenceType):
        return [f"seq({name})" for name in _type_names(kind.elem_type)]
    if isinstance(kind, ir.OptionalType):
        return [f"optional({name})" for name in _type_names(kind.elem_type)]
    return [_tensor_name(kind.dtype)]


@functools.cache
def _tensor_name(dtype: ir.DataType) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(int(dtype)).lower()})"


@functools.cache
def _schema(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@functools.cache
def _added(operator: str, opset: int, newest: int) -> tuple[str, ...]:
    """Attributes that the newer schema has and the older one lacks."""
    new, old = _schema(operator, opset), _schema(operator, newest)
    if new is None or old is None:
        return ()
    return tuple(sorted(set(new.attributes) - set(old.attributes)))


def _is_default(given: ir.Attr, schema: onnx.defs.OpSchema) -> bool:
    default = schema.attributes[given.name].default_value
    return bool(default.type) and ir.serde.deserialize_attribute(default).value == given.value
