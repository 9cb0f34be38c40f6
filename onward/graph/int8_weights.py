"""How large 8-bit weights are, and for which processors those of a model are.

Processors of x86-64 without VNNI multiply bytes in pairs, and add both products in 16 bits: two of
255 * 127 are cut off at 32,767. onnxruntime and OpenVINO use that instruction. With weights up to
64 no pair is cut off: 2 * 255 * 64 = 32,640.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a scan must not import it
    import onnx_ir as ir

LARGEST = 127  # symmetric: -128 is not used
CUT_OFF_FREE = 64
ALL, ALL_BUT_OLD = "all", "all but x86-64 without VNNI"
_KEY = "onward.int8_processors"  # of a model's metadata


def mark_processors(model: ir.Model, largest: int) -> None:
    """Store in a model's metadata for which processors weights of up to `largest` are."""
    model.metadata_props[_KEY] = ALL if largest <= CUT_OFF_FREE else ALL_BUT_OLD


def marked_processors(model: ir.Model) -> str | None:
    """The processors that a model's int8 weights are for; None: it does not say so."""
    return model.metadata_props.get(_KEY)
