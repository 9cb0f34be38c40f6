"""Stored: a rounded weight as tensors of an ONNX model.

layout "columns": codes (inputs, outputs), as DequantizeLinear in front of MatMul has them;
"rows": codes (outputs, inputs), for convolutions; "bytes": codes of several weights in a byte,
(outputs, blocks, bytes), which can be looked up and is also the form of MatMulNBits.

Offsets are stored as more inputs, so that one product does it all: the data is followed by the sum
of each of its blocks, twice, and the codes by those of the offsets, in two digits.

    sum_k x_k ((c_k - zero) s + o) = sum_k x_k (c_k - zero) s + (sum_k x_k) (16 high + low) t
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.weights.blocks import (
    Array,
    Blocks,
    is_half,
    pack,
    round_to_half,
)

LAYOUTS = {"linear": "columns", "conv": "rows"}  # by the kind of a store that is not shared
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
    sums: int = 0  # sums of blocks that follow the data, twice; 0: there are no offsets
    factors: Array | None = None  # what weights were multiplied by, and data is divided by

    @property
    def nbytes(self) -> int:
        tensors = (self.codes, self.scales, self.zeros)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def store(blocks: Blocks, layout: str) -> Stored:
    """The tensors of a rounded weight."""
    shape, sums = (blocks.codes.shape[0], blocks.codes.shape[1]), 0
    if blocks.offsets is not None:
        sums = padded_sums(blocks.scales.shape[1], blocks.block)
        blocks = _append_offsets(blocks, sums)
    turn = layout == "columns"
    bits, codes = blocks.bits, blocks.codes
    if layout == "bytes":
        rows, size = codes.shape
        kept = pack(codes, bits).reshape(rows, size // blocks.block, blocks.block * bits // 8)
        tensor: ir.TensorProtocol = ir.tensor(kept)
    else:
        tensor = _codes(codes.T if turn else codes, bits, signed=blocks.zeros is None)
    zeros: ir.TensorProtocol | None = None
    if blocks.zeros is not None and layout == "bytes":
        zeros = ir.tensor(pack(blocks.zeros, bits).reshape(shape[0], -1))
    elif blocks.zeros is not None:
        zeros = _codes(blocks.zeros.T if turn else blocks.zeros, bits, signed=False)
    return Stored(
        bits=bits,
        block=blocks.block,
        shape=shape,
        codes=tensor,
        scales=_floats(blocks.scales.T if turn else blocks.scales),
        zeros=zeros,
        sums=sums,
    )


def padded_sums(count: int, block: int) -> int:
    """The inputs that the sums of blocks take: whole blocks.

    >>> padded_sums(18, 32)
    32
    """
    return -(-count // block) * block


def _append_offsets(blocks: Blocks, sums: int) -> Blocks:
    """Blocks whose offsets are more inputs: a high digit of each, then a low one."""
    assert blocks.offsets is not None
    rows, count = blocks.offsets.shape
    digits, middle = 1 << blocks.bits, 1 << (blocks.bits - 1)
    padded = np.zeros((rows, sums), np.float32)
    padded[:, :count] = blocks.offsets
    groups = padded.reshape(rows, -1, blocks.block)
    largest = np.abs(groups).max(-1, keepdims=True)
    scale = round_to_half(np.where(largest == 0, np.float32(1), largest / (middle - 0.5)))
    high = np.clip(np.rint(groups / scale), -middle, middle - 1)
    fine = scale / np.float32(digits)
    low = np.clip(np.rint((groups - high * scale) / fine), -middle, middle - 1)
    more = [(each + middle).astype(np.uint8).reshape(rows, sums) for each in (high, low)]
    return Blocks(
        bits=blocks.bits,
        block=blocks.block,
        codes=np.concatenate([blocks.codes, *more], axis=1),
        scales=np.concatenate([blocks.scales, scale[..., 0], fine[..., 0]], axis=1),
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
