"""The table of mixed precision: the type in which each operator computes.

    low       matrix products, convolutions, attention: most of the work; kernels sum in float32
    float32   sums of many terms, functions that grow or fall fast, losses, normalizations
    follow    everything else computes in the type of what it reads

It is torch.autocast's, with differences: reductions are always in float32, and so are the recurrent
operators, which add up over many steps, and small heads (output_products.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from fnmatch import fnmatchcase

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.operators import CONTROL_FLOW, PRODUCTS, REARRANGING, named
from onward.message_text import suggest_names
from onward.passes.attention_calls import NAME as ATTENTION
from onward.passes.composites import is_call
from onward.passes.low_types.typed_places import CHOOSING, SENSITIVE, Typed, find_types
from onward.passes.random_functions import MASKED_SCALE
from onward.passes.value_facts import input_of

LOW = PRODUCTS | {"Attention"}
FLOAT32 = (SENSITIVE | CHOOSING | CONTROL_FLOW | {"LpPool"}) - LOW
# Kernels compute their statistics in float32 (stash_type), whatever they read.
NORMS = named("LayerNormalization RMSNormalization")
# They move elements: a value may as well be cast before them. (A Gather reads a part of a table.)
MOVING = (REARRANGING | {"Concat"}) - named("Compress Gather GatherElements GatherND")

_QKV = 3  # the number of Attention's inputs that are products' factors; a mask follows
# Calls of domain `onward`: the inputs that change with their outputs
_CALLS = {ATTENTION: (0, 1, 2), MASKED_SCALE: (0,), "PackTokens": (0,), "UnpackTokens": (0,)}


class Compute(Enum):
    """The type in which a node computes."""

    LOW = "low"
    FLOAT32 = "float32"
    FOLLOW = "follow"


def type_of(node: ir.Node, patterns: Sequence[str], *, promote: bool) -> Compute:
    """The type in which a node computes by the table, and by the user's patterns.

    Without `promote`, normalizations read and write the type of what they read.
    """
    if any(matches(pattern, node) for pattern in patterns):
        return Compute.FLOAT32
    if is_call(node):
        return Compute.LOW if node.op_type == ATTENTION else Compute.FOLLOW
    if node.op_type in LOW:
        return Compute.LOW
    if not promote and node.op_type in NORMS:
        return Compute.FOLLOW
    return Compute.FLOAT32 if node.op_type in FLOAT32 else Compute.FOLLOW


def places_of(node: ir.Node, opset: int, kind: ir.DataType) -> Typed | None:
    """The inputs and outputs of a node that change together; None if it stays in float32."""
    if is_call(node):
        return _places_of_call(node)
    if node.op_type == "Identity" and node.domain == "":
        first = input_of(node, 0)
        return Typed((0,), (0,)) if _is_float32(first) else None
    typed = find_types(node, opset, kind) if node.domain == "" else None
    if typed is None:
        return None
    if node.op_type == "BatchNormalization":  # its scale and statistics have types of their own
        return Typed((0,), (0,)) if 0 in typed.inputs else None
    if node.op_type == "Attention":
        if any(input_of(node, place) is not None for place in (4, 5)):
            return None  # with past keys and values, which a session has in float32
        return Typed(tuple(i for i in typed.inputs if i < _QKV), tuple(typed.outputs))
    return typed


def _places_of_call(call: ir.Node) -> Typed | None:
    places = _CALLS.get(call.op_type, ())
    values = [input_of(call, place) for place in places]
    return Typed(places, (0,)) if values and all(map(_is_float32, values)) else None


def _is_float32(value: ir.Value | None) -> bool:
    is_tensor = value is not None and isinstance(value.type, ir.TensorType)
    return is_tensor and value is not None and value.dtype == ir.DataType.FLOAT


def matches(pattern: str, node: ir.Node) -> bool:
    """Whether a pattern is a node's operator, or matches its name."""
    return pattern == node.op_type or fnmatchcase(str(node.name), pattern)


def check_patterns(patterns: Sequence[str], nodes: Collection[ir.Node]) -> None:
    """Refuse a pattern that no node matches."""
    for pattern in patterns:
        if not any(matches(pattern, node) for node in nodes):
            known = [*dict.fromkeys(n.op_type for n in nodes), *(str(n.name) for n in nodes)]
            raise OptionError(
                f"precision: no operator and no node is called {pattern!r}\n"
                f"{suggest_names(pattern, known)}"
            )
