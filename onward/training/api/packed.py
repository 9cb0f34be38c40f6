"""Packed: the graphs that a session would run, read from the metadata of the artifacts' models.

`onward.training.packing` has put them there. A model without them runs as it is.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.errors import InvalidModel
from onward.graph.survey.wire import fields, text
from onward.programs.program import UpdateLayout
from onward.providers.ort.training.lowered import LoweredUpdate

STEP, UPDATES = "onward.step", "onward.updates"  # keys of metadata
_VERSION = 1

_GRAPH, _PROPS = 7 << 3 | 2, 14 << 3 | 2  # fields of ModelProto
_INITIALIZER = 5 << 3 | 2  # of GraphProto
_NAME, _PLACE = 8 << 3 | 2, 14 << 3  # of TensorProto: its name, where its data lies
_ELSEWHERE = 1
_KEY, _VALUE = 1 << 3 | 2, 2 << 3 | 2  # of StringStringEntryProto


@dataclass(frozen=True)
class PackedStep:
    """A train graph as `onward.providers.ort.training` lowers it, and the names in it."""

    train: bytes
    parameters: dict[str, str]  # what is trained -> its gradient
    input_gradients: dict[str, str]  # the user's input -> its gradient
    outputs: list[str]  # what the user gets, in order
    output_names: list[str]  # what the user calls them
    state: dict[str, str]  # parameter that the forward changes -> its next contents
    loss_dtype: str
    squared: bool  # whether MEASURE is a sum of squares
    noise_size: bytes | None
    noise_by_shape: bool


@dataclass(frozen=True)
class PackedUpdates:
    """The updates of all parameters, and the names that their slots have in checkpoints."""

    layouts: tuple[UpdateLayout, ...]
    graphs: tuple[LoweredUpdate, ...]
    sequences: dict[str, str]
    clip_norm: float | None
    probe: bytes


def metadata_of(model: bytes) -> dict[str, str]:
    """A model's metadata_props, read without opening it."""
    found = {}
    for tag, start, end in fields(model, 0, len(model)):
        if tag == _PROPS:
            parts = {t: text(model, a, b) for t, a, b in fields(model, start, end)}
            found[parts.get(_KEY, "")] = parts.get(_VALUE, "")
    return found


def read_step(model: bytes, metadata: Mapping[str, str]) -> PackedStep | None:
    """The step that is packed in a training model.

    None where there is none, where weights lie elsewhere, or where someone has changed the model.
    """
    try:
        plain = _load(metadata.get(STEP))
        if plain is None or plain["of"] != checksum(model):
            return None
        weights = list(_weights(model, set(plain["weights"])))
        if len(weights) < len(plain["weights"]):
            return None
        size = plain["noise_size"]
        return PackedStep(
            train=_with_weights(_inflate(plain["train"]), weights),
            parameters=dict(plain["parameters"]),
            input_gradients=dict(plain["input_gradients"]),
            outputs=list(plain["outputs"]),
            output_names=list(plain["output_names"]),
            state=dict(plain["state"]),
            loss_dtype=str(plain["loss_dtype"]),
            squared=bool(plain["squared"]),
            noise_size=None if size is None else _inflate(size),
            noise_by_shape=bool(plain["noise_by_shape"]),
        )
    except _UNREADABLE as error:
        raise _damaged("training model's step", error) from error


def read_updates(metadata: Mapping[str, str]) -> PackedUpdates | None:
    """The updates that are packed in an optimizer model; None: none are."""
    try:
        plain = _load(metadata.get(UPDATES))
        if plain is None:
            return None
        clip_norm = plain["clip_norm"]
        return PackedUpdates(
            layouts=tuple(_layout(each["layout"]) for each in plain["updates"]),
            graphs=tuple(
                LoweredUpdate(
                    graph=_inflate(each["graph"]),
                    bound=_inflate(each["bound"]),
                    blocks=tuple(tuple(map(str, block)) for block in each["blocks"]),
                )
                for each in plain["updates"]
            ),
            sequences=dict(plain["sequences"]),
            clip_norm=None if clip_norm is None else float(clip_norm),
            probe=_inflate(plain["probe"]),
        )
    except _UNREADABLE as error:
        raise _damaged("optimizer model's updates", error) from error


# -- metadata --------------------------------------------------------------------------------------


def dump(plain: Mapping[str, Any]) -> str:
    """What is packed, as text."""
    return json.dumps({"version": _VERSION, **plain})


def press(graph: bytes) -> str:
    """A graph as text.

    >>> _inflate(press(b"a model"))
    b'a model'
    """
    return base64.b64encode(zlib.compress(graph, 9)).decode()


def _inflate(pressed: str) -> bytes:
    return zlib.decompress(base64.b64decode(pressed, validate=True))


def _load(packed: str | None) -> dict[str, Any] | None:
    """What `dump` was given; None where it is of another version: the model's own graph serves."""
    plain: dict[str, Any] = {} if packed is None else json.loads(packed)
    return plain if plain and plain["version"] == _VERSION else None


def _layout(plain: Mapping[str, Any]) -> UpdateLayout:
    slots = {
        slot: {name: tuple(map(int, shape)) for name, shape in shapes.items()}
        for slot, shapes in plain["slots"].items()
    }
    return UpdateLayout(**{**plain, "parameters": tuple(plain["parameters"]), "slots": slots})


_UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, zlib.error)


def _damaged(what: str, error: Exception) -> InvalidModel:
    return InvalidModel(
        f"the {what} cannot be read: {error!r}\n"
        "make the artifacts again with onward.training.artifacts.generate_artifacts"
    )


def checksum(model: bytes) -> int:
    """A checksum of a model's graph."""
    found = 0
    for tag, start, end in fields(model, 0, len(model)):
        if tag == _GRAPH:
            found = zlib.crc32(memoryview(model)[start:end], found)
    return found


# -- weights ---------------------------------------------------------------------------------------


def _weights(model: bytes, wanted: set[str]) -> Iterator[memoryview]:
    """The initializers of these names, as they stand in a model, but for those kept in files."""
    for tag, start, end in fields(model, 0, len(model)):
        if tag != _GRAPH:
            continue
        for inner, a, b in fields(model, start, end):
            if inner == _INITIALIZER:
                about = {t: (x, y) for t, x, y in fields(model, a, b)}
                inside = about.get(_PLACE, (0, 0))[0] != _ELSEWHERE
                if inside and text(model, *about.get(_NAME, (0, 0))) in wanted:
                    yield memoryview(model)[a:b]


def _with_weights(model: bytes, weights: Sequence[memoryview]) -> bytes:
    """A model with more initializers."""
    if not weights:
        return model
    parts: list[bytes | memoryview] = []
    for tag, start, end in fields(model, 0, len(model)):
        if tag == _GRAPH:
            added = [part for each in weights for part in (*_head(_INITIALIZER, len(each)), each)]
            size = end - start + sum(map(len, added))
            parts += [*_head(tag, size), memoryview(model)[start:end], *added]
        elif tag & 7:
            parts += [*_head(tag, end - start), memoryview(model)[start:end]]
        else:
            parts += [_varint(tag), _varint(start)]
    return b"".join(parts)


def _head(tag: int, size: int) -> tuple[bytes, bytes]:
    return _varint(tag), _varint(size)


def _varint(number: int) -> bytes:
    """A number in groups of seven bits."""
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])
