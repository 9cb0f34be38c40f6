"""Choose bits, block and scheme of each weight under a budget, by the error that each makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.node_names import drop_traces
from onward.compress.quantization.weights.allocation import Option, allocate
from onward.compress.quantization.weights.rounding import Inputs, relative_error, sample_rows
from onward.compress.quantization.weights.scales import round_weights
from onward.compress.quantization.weights.sites import WeightMatrix
from onward.compress.quantization.weights.stored import padded_sums
from onward.graph.dtypes import FLOATS
from onward.graph.protos import to_proto
from onward.graph.scopes import graphs_of

_RATED_ROWS = 64  # of a weight, to see what formats cost


class WeightFormat(NamedTuple):
    """How a weight is stored."""

    bits: int
    block: int
    scheme: str


_USUAL = (
    WeightFormat(4, 128, "symmetric"),
    WeightFormat(4, 64, "symmetric"),
    WeightFormat(4, 32, "symmetric"),
    WeightFormat(4, 32, "zeros"),
    WeightFormat(4, 32, "offsets"),
    WeightFormat(4, 16, "symmetric"),
    WeightFormat(4, 16, "zeros"),
    WeightFormat(8, 128, "symmetric"),
    WeightFormat(8, 32, "symmetric"),
)
_SMALL = (
    WeightFormat(2, 64, "symmetric"),
    WeightFormat(2, 32, "symmetric"),
)  # where 4 bits are too many


def choose_formats(
    stores: Sequence[WeightMatrix], inputs: Mapping[WeightMatrix, Inputs], budget: int
) -> dict[WeightMatrix, WeightFormat]:
    """The format of each weight, so that all of them take at most `budget` bytes."""
    choices = _USUAL if _least_bytes(stores, _USUAL) <= budget else _SMALL + _USUAL
    options = {each: _rate(each, choices, inputs.get(each, Inputs())) for each in stores}
    return allocate(options, budget)


def least_bytes(stores: Sequence[WeightMatrix]) -> list[int]:
    """The bytes of the stores in their smallest formats: with 2 bits where they may be, and 4."""
    return [_least_bytes(stores, choices) for choices in (_SMALL + _USUAL, _USUAL)]


def _least_bytes(stores: Sequence[WeightMatrix], choices: Sequence[WeightFormat]) -> int:
    return sum(
        min(stored_bytes(each, choice) for choice in choices if _allows(each, choice))
        for each in stores
    )


def bytes_for_bits(model: ir.Model, stores: Sequence[WeightMatrix], average_bits: float) -> int:
    """The bytes that the stores may take, so that the model's weights have these bits each."""
    others = _other_weights(model, stores)
    count = sum(tensor.size for tensor in others if tensor.dtype in FLOATS)
    count += sum(each.size for each in stores)  # a weight that is read in two layouts counts twice
    return int(average_bits * count / 8) - sum(tensor.nbytes for tensor in others)


def bytes_for_file(model: ir.Model, stores: Sequence[WeightMatrix], size: int) -> int:
    """The bytes that the stores may take, so that the model's file has at most `size`.

    The nodes that read stored weights are not counted: a plan that is written shows their bytes.
    """
    bare = model.clone()
    for graph in graphs_of(bare):
        for value in graph.initializers.values():
            value.const_value = ir.tensor(np.zeros(0, np.float32), name=value.name)
    drop_traces(bare)  # as in what is written
    others = sum(tensor.nbytes for tensor in _other_weights(model, stores))
    return size - others - int(to_proto(bare).ByteSize())


def _other_weights(model: ir.Model, stores: Sequence[WeightMatrix]) -> list[ir.TensorProtocol]:
    """The weights that are not in a store."""
    stored = {value for each in stores for value in (each.weight, *each.copies)}
    values = [value for graph in graphs_of(model) for value in graph.initializers.values()]
    tensors = [value.const_value for value in values if value not in stored]
    return [tensor for tensor in tensors if tensor is not None]


def _rate(
    each: WeightMatrix, choices: Sequence[WeightFormat], inputs: Inputs
) -> list[Option[WeightFormat]]:
    """The bytes and the error of each way to store a weight."""
    rows, importance = sample_rows(each.matrix(), _RATED_ROWS), inputs.importance
    options = []
    for choice in choices:
        if not _allows(each, choice):
            continue
        blocks = round_weights(rows, *choice, importance=importance)
        error = relative_error(rows, blocks, importance)
        options.append(Option(choice, stored_bytes(each, choice), error))
    each.forget()
    return options


def _allows(each: WeightMatrix, choice: WeightFormat) -> bool:
    """Whether a weight may be stored in a format."""
    if not (each.allows_block(choice.bits, choice.block) and each.allows_bits(choice.bits)):
        return False
    if choice.scheme == "offsets":
        return each.allows_offsets(choice.block)
    return choice.scheme != "zeros" or each.allows_zeros(choice.bits, choice.block)


def stored_bytes(each: WeightMatrix, choice: WeightFormat) -> int:
    """The bytes of a stored weight, with scales of 16 bits."""
    rows, size = each.shape
    blocks = -(-size // choice.block)
    if choice.scheme == "offsets":
        more = 2 * padded_sums(blocks, choice.block)
        size, blocks = size + more, blocks + more // choice.block
    zeros = -(-rows * blocks * choice.bits // 8) if choice.scheme == "zeros" else 0
    return -(-rows * size * choice.bits // 8) + 2 * rows * blocks + zeros
