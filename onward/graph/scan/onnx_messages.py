"""Read ONNX's messages from a model's bytes: tensors, attributes, nodes, types."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import numpy as np

from onward.errors import InvalidModel
from onward.graph.dtypes import BY_NUMBER, ELEMENT_TYPES
from onward.graph.scan.protobuf import RUN, fields, numbers, signed, text

Span = tuple[int, int]  # where a message begins and ends
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

# Tags: the number of a field in its message, and its kind (0 a number, 2 a length, 5 and 1 fixed).
_NUMBER, _LENGTH = 0, 2
_TYPED = frozenset({4, 5, 7, 10, 11})  # the fields of a tensor's data, except raw and text
_MOST_VALUES = 64  # elements of a tensor whose values are read
_MOST_REALS = 8  # ... of floats: scales and ranges are all that shapes need
BITS = {each.number: each.bits for each in ELEMENT_TYPES if each.bits}
STRING = 8
_READ = frozenset((1, 6, 7, 10, 11))  # types whose values are read: floats, int32 and int64


@dataclass(frozen=True, slots=True)
class ScannedTensor:
    """A tensor's declaration; its data is not read."""

    name: str
    dtype: int
    dims: tuple[int, ...]
    external: dict[str, str] | None
    given: int  # bytes of data in the model itself
    data: tuple[tuple[int, int, int], ...]  # where they are: (field, start, end)

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    def check(self, where: object) -> None:
        """Refuse data that is declared but missing, before memory is reserved for it."""
        if min(self.dims, default=0) < 0:
            raise InvalidModel(
                f"{where}: the shape {list(self.dims)} of tensor {self.name!r} has a negative size"
            )
        if self.external is not None or self.dtype == STRING:
            needed = 0
        elif any(number == 9 for number, _, _ in self.data):
            needed = -(-self.size * BITS.get(self.dtype, 0) // 8)
        else:
            needed = -(-self.size // 4)  # of the smallest types, four to a byte
        if needed > self.given and self.size > 1:
            raise InvalidModel(
                f"{where}: tensor {self.name!r} of shape {list(self.dims)} needs {needed:,} bytes "
                f"and has {self.given:,}"
            )

    def values(self, model: bytes) -> Array | None:
        """The elements of a small tensor of plain numbers."""
        most = _MOST_VALUES if self.dtype in (6, 7) else _MOST_REALS
        if self.external is not None or self.size > most or self.dtype not in _READ:
            return None
        kind = BY_NUMBER[self.dtype].dtype.newbyteorder("<")
        found: list[float] = []
        for number, start, end in self.data:
            if number in (5, 7):
                found += numbers(model, start, end, _MOST_VALUES)
            elif kind.itemsize and (end - start) % kind.itemsize == 0:
                found += np.frombuffer(model[start:end], kind).tolist()
        if len(found) != self.size:
            return None
        with np.errstate(all="ignore"):
            return np.array(found).astype(kind).reshape(self.dims)


def read_tensor(data: bytes, start: int, end: int) -> ScannedTensor:
    """A TensorProto."""
    name, dtype, given, away = "", 0, 0, False
    dims: list[int] = []
    entries: dict[str, str] = {}
    spans: list[tuple[int, int, int]] = []
    for tag, a, b in fields(data, start, end):
        number, kind = (tag & ~RUN) >> 3, tag & 7
        if number == 1 and tag & RUN:
            raise InvalidModel(f"tensor {name!r} has too many dimensions")
        if number == 1:
            dims += numbers(data, a, b, 1 << 10) if kind == _LENGTH else [signed(a)]
        elif number == 2 and kind == _NUMBER:
            dtype = a
        elif number == 8 and kind == _LENGTH:
            name = text(data, a, b)
        elif number == 13 and kind == _LENGTH:
            key, value = _entry(data, a, b)
            entries[key] = value
        elif number == 14 and kind == _NUMBER:
            away = a == 1
        elif number == 9 and kind == _LENGTH:
            spans = [(9, a, b)]
        elif number == 6 and kind == _LENGTH:
            given += b - a
        elif number in _TYPED:
            if kind == _LENGTH or tag & RUN:
                given += b - a
                spans.append((number, a, b))
            else:
                given += 8
    given += sum(b - a for number, a, b in spans if number == 9)
    external = entries if away or entries else None
    return ScannedTensor(name, dtype, tuple(dims), external, given, tuple(spans))


def check_external_range(tensor: ScannedTensor) -> None:
    """Refuse external data whose offset or length is not a number, 0 or more."""
    entries = tensor.external or {}
    for key in ("offset", "length"):
        given = entries.get(key, "0")
        if not (given.isascii() and given.removeprefix("-").isdigit() and len(given) < 32):
            raise InvalidModel(
                f"external data of {tensor.name!r}: its {key} {given[:80]!r} is not a whole number"
            )
    offset, length = (int(entries.get(key, "0")) for key in ("offset", "length"))
    if offset < 0 or length < 0:
        raise InvalidModel(
            f"external data of {tensor.name!r} has offset {offset:,} and length {length:,}: "
            "neither may be negative"
        )


def read_sparse(data: bytes, start: int, end: int) -> tuple[list[int], list[ScannedTensor]]:
    """A SparseTensorProto: its shape, its values and their indices."""
    dims: list[int] = []
    tensors: list[ScannedTensor] = []
    for tag, a, b in fields(data, start, end):
        if tag in (10, 18):
            tensors.append(read_tensor(data, a, b))
        elif tag == 24:
            dims.append(signed(a))
        elif tag == 26:
            dims += numbers(data, a, b, _MOST_VALUES)
    return dims, tensors


def _entry(data: bytes, start: int, end: int) -> tuple[str, str]:
    """A pair of texts."""
    found = {1: "", 2: ""}
    for tag, a, b in fields(data, start, end):
        if tag in (10, 18):
            found[tag >> 3] = text(data, a, b)
    return found[1], found[2]


@dataclass(slots=True)
class ScannedAttribute:
    """One attribute of a node, as far as a scan needs it."""

    number: int | None
    real: float | None
    word: str
    ints: list[int]
    tensors: list[ScannedTensor]
    sparse: list[Span]
    graphs: list[Span]
    items: int  # numbers and texts in its lists
    refers_to: str  # the attribute of a function that it is; "" for none


def read_attribute(data: bytes, start: int, end: int) -> tuple[str, ScannedAttribute]:
    """An AttributeProto: its name and content."""
    name, word, refers_to, number, real, items = "", "", "", None, None, 0
    ints: list[int] = []
    tensors: list[ScannedTensor] = []
    sparse: list[Span] = []
    graphs: list[Span] = []
    for tag, a, b in fields(data, start, end):
        if tag == 10:
            name = text(data, a, b)
        elif tag == 24:
            number = signed(a)
        elif tag == 21:
            (real,) = struct.unpack("<f", data[a:b])
        elif tag == 34:
            word = text(data, a, min(b, a + 64))
        elif tag == 64:
            ints.append(signed(a))
        elif tag == 66:
            ints += numbers(data, a, b, _MOST_VALUES)
        elif tag in (42, 82):
            tensors.append(read_tensor(data, a, b))
        elif tag in (50, 90):
            graphs.append((a, b))
        elif tag == 170:
            refers_to = text(data, a, min(b, a + 64))
        elif tag in (178, 186):
            sparse.append((a, b))
        elif tag & RUN:
            items += b - a
        elif tag >> 3 in (7, 9):
            items += 1
    return name, ScannedAttribute(
        number, real, word, ints, tensors, sparse, graphs, items + len(ints), refers_to
    )


@dataclass(slots=True)
class ScannedNode:
    """One node."""

    op: str = ""
    domain: str = ""
    name: str = ""
    overload: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, ScannedAttribute] = field(default_factory=dict)

    def __str__(self) -> str:
        domain = self.domain or "ai.onnx"
        return f"{domain[:80]}::{self.op[:80]} (node {self.name[:80]!r})"


def read_node(data: bytes, start: int, end: int, most: int) -> ScannedNode:
    """A NodeProto; one with more inputs and outputs than `most` is not read to its end."""
    node = ScannedNode()
    for tag, a, b in fields(data, start, end):
        if tag == 10:
            node.inputs.append(text(data, a, b))
            if len(node.inputs) > most:
                break
        elif tag == 18:
            node.outputs.append(text(data, a, b))
            if len(node.outputs) > most:
                break
        elif tag == 34:
            node.op = text(data, a, b)
        elif tag == 42:
            name, attribute = read_attribute(data, a, b)
            node.attributes[name] = attribute
        elif tag == 26:
            node.name = text(data, a, b)
        elif tag == 58:
            node.domain = text(data, a, b)
        elif tag == 66:
            node.overload = text(data, a, b)
    if node.domain == "ai.onnx":
        node.domain = ""
    return node


def read_opset(data: bytes, start: int, end: int) -> tuple[str, int]:
    """An OperatorSetIdProto: the domain and its version."""
    domain, version = "", 0
    for tag, a, b in fields(data, start, end):
        if tag == 10:
            domain = text(data, a, b)
        elif tag == 16:
            version = signed(a)
    return domain, version


@dataclass(slots=True)
class ScannedValue:
    """A value that a graph declares: its name, and the shapes in its type."""

    name: str = ""
    dtype: int = 0
    shapes: list[tuple[int | None, ...]] = field(default_factory=list)  # None: not a number


def read_value(data: bytes, start: int, end: int) -> ScannedValue:
    """A ValueInfoProto. Sequences and optionals nest without end: no recursion here."""
    value = ScannedValue()
    types: list[Span] = []
    for tag, a, b in fields(data, start, end):
        if tag == 10:
            value.name = text(data, a, b)
        elif tag == 18:
            types.append((a, b))
    levels = 0
    while types and levels < 100:
        levels += 1
        deeper: list[Span] = []
        for each in types:
            for tag, a, b in fields(data, *each):
                if tag in (10, 66):  # a tensor, dense or sparse
                    _read_tensor_type(data, a, b, value)
                elif tag in (34, 42, 74):  # a sequence, a map, an optional
                    inner = fields(data, a, b)
                    deeper += [(c, d) for tag, c, d in inner if tag in (10, 18) and d]
        types = deeper
    if types:
        raise InvalidModel(f"the type of {value.name!r} nests more than {levels} deep")
    return value


def _read_tensor_type(data: bytes, start: int, end: int, value: ScannedValue) -> None:
    for tag, a, b in fields(data, start, end):
        if tag == 8:
            value.dtype = a
        elif tag == 18:
            shape: list[int | None] = []
            for dim, c, d in fields(data, a, b):
                if dim == 10:
                    sizes = [signed(e) for size, e, _ in fields(data, c, d) if size == 8]
                    shape.append(sizes[-1] if sizes else None)
            value.shapes.append(tuple(shape))
