"""Writes checkpoint files the way onnxruntime.training 1.16 to 1.19 does, with flatbuffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

Array = np.ndarray[Any, Any]
NUMBERS = {"float32": 1, "int64": 7, "float16": 10, "float64": 11}


class PeerWriter:
    """Tables in the order of ort_training_checkpoint.fbs and ort.fbs."""

    def __init__(self, external: Path | None = None) -> None:
        self.builder = flatbuffers.Builder(1024)
        self.external, self._data = external, b""

    def table(self, fields: Sequence[tuple[str, Any] | None]) -> int:
        """A table of (kind, value); None leaves a field out."""
        builder = self.builder
        builder.StartObject(len(fields))
        for index, entry in enumerate(fields):
            if entry is None:
                continue
            kind, value = entry
            if kind == "offset":
                builder.PrependUOffsetTRelativeSlot(index, value, 0)
            else:
                getattr(builder, f"Prepend{kind}Slot")(
                    index, value, -(2**31) if kind != "Bool" else 0
                )
        return int(builder.EndObject())

    def vector(self, items: Sequence[int]) -> int:
        self.builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.builder.PrependUOffsetTRelative(item)
        return int(self.builder.EndVector())

    def tensor(self, name: str, array: Array, nominal: bool = False) -> int:
        text = self.builder.CreateString(name)
        self.builder.StartVector(8, array.ndim, 8)
        for size in reversed(array.shape):
            self.builder.PrependInt64(size)
        dims = self.builder.EndVector()
        raw, offset = None, None
        if self.external is not None and array.nbytes > 8:
            offset = ("Int64", len(self._data))
            self._data += array.tobytes() + b"pad"
        elif not nominal:
            raw = ("offset", self.builder.CreateByteVector(array.tobytes()))
        number = ("Int32", NUMBERS[array.dtype.name])
        head = [("offset", text), None, ("offset", dims), number, raw, None, offset]
        return self.table(head)

    def tensors(self, arrays: Mapping[str, Array], nominal: bool = False) -> int:
        return self.vector([self.tensor(n, arrays[n], nominal) for n in sorted(arrays)])

    def properties(self, values: Mapping[str, int | float | str]) -> int:
        lists: dict[str, list[int]] = {"Int64": [], "Float32": [], "offset": []}
        for name, value in sorted(values.items()):
            kind = {int: "Int64", float: "Float32", str: "offset"}[type(value)]
            text = self.builder.CreateString(name)
            content = self.builder.CreateString(value) if isinstance(value, str) else value
            lists[kind].append(self.table([("offset", text), (kind, content)]))
        vectors = [("offset", self.vector(items)) for items in lists.values()]
        return self.table(vectors)

    def optimizer(self, step: int, rate: float, moments: Mapping[str, Sequence[Array]]) -> int:
        states = []
        for name, arrays in sorted(moments.items()):
            named = {f"momentum{i}": array for i, array in enumerate(arrays)}
            text, vector = self.builder.CreateString(name), self.tensors(named)
            states.append(self.table([("offset", text), ("offset", vector)]))
        vector, text = self.vector(states), self.builder.CreateString("group0")
        fields = [("offset", text), ("Int64", step), ("Float32", rate), ("offset", vector)]
        return self.table(fields)


def write_peer(
    path: Path,
    trainable: Mapping[str, Array],
    frozen: Mapping[str, Array],
    *,
    properties: Mapping[str, int | float | str] | None = None,
    optimizer: tuple[int, float, Mapping[str, Sequence[Array]]] | None = None,
    nominal: bool = False,
    external: bool = False,
    version: int = 2,
) -> None:
    """A whole checkpoint file, and its data file if tensors lie outside."""
    data_path = path.with_name(path.name + ".data") if external else None
    writer = PeerWriter(data_path)
    lists = [("offset", writer.tensors(arrays, nominal)) for arrays in (trainable, frozen)]
    flags = [("Bool", True) if nominal else None, ("Bool", True) if external else None]
    module = writer.table([*lists, *flags])
    groups = writer.vector([writer.optimizer(*optimizer)] if optimizer else [])
    bag = writer.properties(properties or {})
    root = writer.table(
        [("Int32", version), ("offset", module), ("offset", groups), ("offset", bag)]
    )
    writer.builder.Finish(root, b"ODTC")
    path.write_bytes(bytes(writer.builder.Output()))
    if data_path is not None:
        data_path.write_bytes(writer._data)
