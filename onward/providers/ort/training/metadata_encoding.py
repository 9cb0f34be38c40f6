"""Lowered graphs as text, for the metadata of a model.

    model.metadata_props["onward.updates"] = pack({"updates": pack_updates(layouts, lowered), ...})

Light: a device reads them with numpy and onnxruntime alone.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import InvalidModel
from onward.programs.program import UpdateLayout
from onward.providers.ort.training.lowered import LoweredUpdate, tuples

VERSION = 1
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, zlib.error)


def pack(plain: Mapping[str, Any]) -> str:
    """What is packed, as text."""
    return json.dumps({"version": VERSION, **plain})


def unpack(metadata: Mapping[str, str], key: str) -> dict[str, Any] | None:
    """What `pack` was given; None where there is nothing, or something of another version."""
    try:
        plain: dict[str, Any] = json.loads(metadata[key]) if key in metadata else {}
        return plain if plain and plain.pop("version") == VERSION else None
    except UNREADABLE as error:
        raise damaged(key, error) from error


def press(graph: bytes) -> str:
    """A graph as text.

    >>> inflate(press(b"a model"))
    b'a model'
    """
    return base64.b64encode(zlib.compress(graph, 9)).decode()


def inflate(pressed: str) -> bytes:
    """The graph that `press` was given."""
    return zlib.decompress(base64.b64decode(pressed, validate=True))


def pack_updates(
    layouts: Sequence[UpdateLayout], lowered: Sequence[LoweredUpdate]
) -> list[dict[str, Any]]:
    """Updates, ready to be packed."""
    return [
        {
            "layout": dataclasses.asdict(layout),
            "graph": press(update.graph),
            "bound": press(update.bound),
            "blocks": update.blocks,
        }
        for layout, update in zip(layouts, lowered)
    ]


def unpack_updates(
    packed: Sequence[Mapping[str, Any]],
) -> tuple[tuple[UpdateLayout, ...], tuple[LoweredUpdate, ...]]:
    """What `pack_updates` was given."""
    layouts = tuple(UpdateLayout(**tuples(each["layout"])) for each in packed)
    lowered = tuple(
        LoweredUpdate(
            graph=inflate(each["graph"]),
            bound=inflate(each["bound"]),
            **tuples({"blocks": each["blocks"]}),
        )
        for each in packed
    )
    return layouts, lowered


def damaged(key: str, error: Exception) -> InvalidModel:
    return InvalidModel(
        f"the model's {key} cannot be read: {error!r}\n"
        "make the artifacts again with onward.training.artifacts.generate_artifacts"
    )
