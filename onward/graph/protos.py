"""Convert models to and from ONNX's messages, map types included, which onnx-ir lacks.

ZipMap (scikit-learn's converter ends every classifier with one) gives a sequence of maps, and
DictVectorizer and CastMap take a map. While onnx-ir reads or writes a model, such values have no
type; before and after, it is a MapType.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.scopes import walk


@dataclass(unsafe_hash=True)
class MapType:
    """A map from keys, integers or strings, to values of one type."""

    key_type: ir.DataType
    elem_type: Any  # a type, never a DataType, which the protocol would allow
    denotation: str | None = None
    # a map has no element type itself: it must not be taken for a tensor
    dtype: ir.DataType = field(default=ir.DataType.UNDEFINED, init=False)


def holds_map(kind: object) -> bool:
    """Whether a type is a map, or a sequence or an optional of maps."""
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return isinstance(kind, MapType)


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """An onnx-ir model from ONNX's message."""
    try:
        return ir.from_proto(proto)
    except Exception:  # onnx-ir raises many kinds; only maps are handled here
        maps = {info.name: info.type for info in _infos(proto) if _has_map(info.type)}
        if not maps:
            raise
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for info in _infos(bare):
        if _has_map(info.type):
            info.ClearField("type")
    model = ir.from_proto(bare)
    for value in _values(model):
        if value.name in maps:
            value.type = from_type_proto(maps[value.name])
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """ONNX's message of an onnx-ir model."""
    try:
        return ir.to_proto(model)
    except Exception:  # as above
        with without_maps(model) as maps:
            if not maps:
                raise
            proto: onnx.ModelProto = ir.to_proto(model)
    write_maps(proto, maps)
    return proto


@contextmanager
def without_maps(model: ir.Model) -> Iterator[dict[str, onnx.TypeProto]]:
    """While in this context, values of map types have no type; yields the types by name."""
    held = [(value, value.type) for value in _values(model) if holds_map(value.type)]
    for value, _ in held:
        value.type = None
    try:
        yield {str(value.name): to_type_proto(kind) for value, kind in held if kind is not None}
    finally:
        for value, kind in held:
            value.type = kind


def write_maps(proto: onnx.ModelProto, maps: dict[str, onnx.TypeProto]) -> None:
    """Write map types onto the values of a message that have no type."""
    for info in _infos(proto) if maps else ():
        if info.name in maps and info.type.WhichOneof("value") is None:
            info.type.CopyFrom(maps[info.name])


def from_type_proto(proto: onnx.TypeProto) -> ir.TypeProtocol | None:
    """A type from ONNX's message of it."""
    denotation = proto.denotation or None
    kind = proto.WhichOneof("value")
    if kind == "map_type":
        value = from_type_proto(proto.map_type.value_type)
        if value is None:
            return None
        return MapType(ir.DataType(proto.map_type.key_type), value, denotation)
    if kind in ("sequence_type", "optional_type") and _has_map(proto):
        elem = from_type_proto(getattr(proto, kind).elem_type)
        wrap = ir.SequenceType if kind == "sequence_type" else ir.OptionalType
        return None if elem is None else wrap(elem, denotation=denotation)
    return ir.serde.deserialize_type_proto_for_type(proto)


def shape_from_type_proto(proto: onnx.TypeProto) -> ir.Shape | None:
    """The shape in ONNX's message of a type; maps have none."""
    return None if _has_map(proto) else ir.serde.deserialize_type_proto_for_shape(proto)


def to_type_proto(kind: ir.TypeProtocol) -> onnx.TypeProto:
    """ONNX's message of a type."""
    proto = onnx.TypeProto()
    _write_type(proto, kind)
    return proto


def _write_type(proto: onnx.TypeProto, kind: ir.TypeProtocol) -> None:
    if not holds_map(kind):
        ir.serde.serialize_type_into(proto, kind)
        return
    if kind.denotation:
        proto.denotation = kind.denotation
    if isinstance(kind, MapType):
        proto.map_type.key_type = int(kind.key_type)
        _write_type(proto.map_type.value_type, kind.elem_type)
    elif isinstance(kind, ir.SequenceType):
        _write_type(proto.sequence_type.elem_type, kind.elem_type)
    elif isinstance(kind, ir.OptionalType):
        _write_type(proto.optional_type.elem_type, kind.elem_type)


def _has_map(proto: onnx.TypeProto) -> bool:
    kind: str | None = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _has_map(getattr(proto, kind).elem_type)
    return kind == "map_type"


def _infos(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The declared values of a model's message, subgraphs and functions included."""
    yield from _graph_infos(proto.graph)
    for function in proto.functions:
        yield from function.value_info
        yield from _inner_infos(function.node)


def _graph_infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    for infos in (graph.input, graph.output, graph.value_info):
        yield from infos
    yield from _inner_infos(graph.node)


def _inner_infos(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.ValueInfoProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graph_infos(attribute.g)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Inputs, outputs and nodes' outputs, subgraphs and functions included."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from graph.inputs
        yield from graph.outputs
        for node in walk(graph):
            yield from node.outputs
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    yield from attribute.as_graph().inputs
