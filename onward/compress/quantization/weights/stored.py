"""Stored: a rounded weight as tensors of an ONNX model.

layout "columns": codes (inputs, outputs), as DequantizeLinear in front of MatMul has them;
"rows": codes (outputs, inputs), for convolutions; "bytes": codes of several weights in a byte,
(outputs, blocks, bytes), which can be looked up and is also the form of MatMulNBits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.weights.blocks import Array, Blocks, is_half, pack

LAYOUTS = {"linear": "columns", "conv": "rows", "table": "bytes"}  # by the kind of the store
_SIGNED = {8: ir.DataType.INT8, 4: ir.DataType.INT4, 2: ir.DataType.INT2}
_UNSIGNED = {8: ir.DataType.UINT8, 4: ir.DataType.UINT4, 2: ir.DataType.UINT2}


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A weight of few bits as tensors; which of them there are, the scheme says (see Blocks)."""

    bits: int
    block: int
    shape: tuple[int, int]
    codes: ir.TensorProtocol
    scales: ir.TensorProtocol
    zeros: ir.TensorProtocol | None
    offsets: ir.TensorProtocol | None

    @property
    def nbytes(self) -> int:
        tensors = (self.codes, self.scales, self.zeros, self.offsets)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def store(blocks: Blocks, layout: str) -> Stored:
    """The tensors of a rounded weight."""
    turn = layout == "columns"
    bits, codes = blocks.bits, blocks.codes
    if layout == "bytes":
        rows, size = codes.shape
        kept = pack(codes, bits).reshape(rows, size // blocks.block, blocks.block * bits // 8)
        tensor: ir.TensorProtocol = ir.tensor(kept)
    else:
        tensor = _codes(codes.T if turn else codes, bits, signed=blocks.zeros is None)
    zeros = offsets = None
    if blocks.zeros is not None:
        zeros = _codes(blocks.zeros.T if turn else blocks.zeros, bits, signed=False)
    if blocks.offsets is not None:
        offsets = _floats(blocks.offsets.T if turn else blocks.offsets)
    return Stored(
        bits=bits,
        block=blocks.block,
        shape=(codes.shape[0], codes.shape[1]),
        codes=tensor,
        scales=_floats(blocks.scales.T if turn else blocks.scales),
        zeros=zeros,
        offsets=offsets,
    )


def _codes(codes: Array, bits: int, signed: bool) -> ir.TensorProtocol:
    """Codes in ONNX's type; signed ones have their zero in the middle of the codes."""
    flipped = codes ^ np.uint8(1 << (bits - 1)) if signed else codes
    dtype = (_SIGNED if signed else _UNSIGNED)[bits]
    if bits == 8:
        kept = np.ascontiguousarray(flipped)
        return ir.tensor(kept.view(np.int8) if signed else kept)
    return ir.PackedTensor(pack(flipped, bits), dtype, shape=codes.shape)


def _floats(numbers: Array) -> ir.TensorProtocol:
    kind = np.float16 if is_half(numbers) else np.float32
    return ir.tensor(np.ascontiguousarray(numbers, dtype=kind))
