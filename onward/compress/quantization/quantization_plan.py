"""The plan of a quantization: which node gets which format; and Quantizer, which writes plans.

A plan is a value, so that the search can take nodes out of it and write the model again:

    quantizer = Int8Quantizer(model, calibration, settings)     # statistics are measured once
    quantizer.write(quantizer.plan)                             # everything that may be quantized
    quantizer.write({name: f for name, f in quantizer.plan.items() if name not in undone})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir


@dataclass(frozen=True, kw_only=True)
class NodeFormat:
    """How a node computes, and how its weight is stored.

    Attributes:
        kind: "static" (int8 data with measured ranges, int8 weights), "dynamic" (int8 data with
            ranges of each run, int8 weights), "weights" (weights of few bits, float data),
            "float16", "bfloat16"
        bits: of the weights: 8, 4, 2 or 16
        block: the weights that share a scale along the reduced axis; 0: one scale a channel
        method: how weights were rounded: "rtn", "mse", "gptq", "awq"; "" where there is no choice
    """

    kind: str
    bits: int = 8
    block: int = 0
    method: str = ""

    def __str__(self) -> str:
        """
        >>> str(NodeFormat(kind="weights", bits=4, block=32, method="gptq"))
        'int4 weights, blocks of 32, gptq'
        """
        if self.kind in ("float16", "bfloat16"):
            return self.kind
        words = [f"int{self.bits} {self.kind}"]
        words += [f"blocks of {self.block}"] if self.block else []
        words += [self.method] if self.method else []
        return ", ".join(words)


Plan = Mapping[str, NodeFormat]  # by the node's name; a node that is not in it stays as it was


class Quantizer(Protocol):
    """One way to quantize a model: it has prepared and measured it, and writes any plan."""

    @property
    def model(self) -> ir.Model:
        """The prepared float model; every node has a unique name. It does not change."""
        ...

    @property
    def plan(self) -> Plan:
        """The format of every node that may be quantized."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """Nodes that have a format in principle, and why they stay as they are."""
        ...

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        """Nodes of a plan that are undone together, because one alone would cost more.

        Such as a chain of convolutions whose data stays int8 between them.
        """
        ...

    def write(self, plan: Plan) -> ir.Model:
        """A new model that follows a plan: the same plan, the same bytes."""
        ...
