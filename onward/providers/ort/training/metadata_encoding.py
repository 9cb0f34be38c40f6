"""Encode lowered graphs as text, for the metadata of a model.

    model.metadata_props["onward.updates"] = pack({"updates": pack_updates(layouts, lowered), ...})

A device reads them with numpy and onnxruntime only.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import InvalidModel
from onward.programs.layout_json import tuples
from onward.programs.program import UpdateLayout
from onward.providers.ort.training.lowered import LoweredUpdate

VERSION = 1
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, zlib.error)


def pack(plain: Mapping[str, Any]) -> str:
    """Encode plain values as text, with a version."""
    return json.dumps({"version": VERSION, **plain})


def unpack(metadata: Mapping[str, str], key: str) -> dict[str, Any] | None:
    """The values that `pack` encoded; None if there are none, or of another version."""
    try:
        plain: dict[str, Any] = json.loads(metadata[key]) if key in metadata else {}
        return plain if plain and plain.pop("version") == VERSION else None
    except UNREADABLE as error:
        raise unreadable_error(key, error) from error


def compress_graph(graph: bytes) -> str:
    """Compress a graph to text.

    >>> decompress_graph(compress_graph(b"a model"))
    b'a model'
    """
    return base64.b64encode(zlib.compress(graph, 9)).decode()


def decompress_graph(text: str) -> bytes:
    """The graph that `compress_graph` was given."""
    return zlib.decompress(base64.b64decode(text, validate=True))


def pack_updates(
    layouts: Sequence[UpdateLayout], lowered: Sequence[LoweredUpdate]
) -> list[dict[str, Any]]:
    """Updates as plain values, for `pack`."""
    return [
        {
            "layout": dataclasses.asdict(layout),
            "graph": compress_graph(update.graph),
            "bound": compress_graph(update.bound),
            "blocks": update.blocks,
        }
        for layout, update in zip(layouts, lowered)
    ]


def unpack_updates(
    packed: Sequence[Mapping[str, Any]],
) -> tuple[tuple[UpdateLayout, ...], tuple[LoweredUpdate, ...]]:
    """The layouts and updates that `pack_updates` encoded."""
    layouts = tuple(UpdateLayout(**tuples(each["layout"])) for each in packed)
    lowered = tuple(
        LoweredUpdate(
            graph=decompress_graph(each["graph"]),
            bound=decompress_graph(each["bound"]),
            **tuples({"blocks": each["blocks"]}),
        )
        for each in packed
    )
    return layouts, lowered


def unreadable_error(key: str, error: Exception) -> InvalidModel:
    return InvalidModel(
        f"the model's {key} cannot be read: {error!r}\n"
        "make the artifacts again with onward.training.artifacts.generate_artifacts"
    )
