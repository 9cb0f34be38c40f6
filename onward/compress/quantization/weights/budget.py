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
from onward.graph.files import weight_bytes
from onward.graph.protos import to_proto
from onward.graph.scopes import graphs_of

_RATED_ROWS = 64  # of a weight, to see what formats cost
_ADDED_NODES = 1500  # bytes of the nodes and small constants that a site adds, at most


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
    least = sum(_nbytes(each, _smallest(each)) for each in stores)
    choices = _USUAL if least <= budget else _SMALL + _USUAL
    options = {each: _rate(each, choices, inputs.get(each, Inputs())) for each in stores}
    return allocate(options, budget)


def _smallest(each: WeightMatrix) -> WeightFormat:
    """The smallest of the usual formats that a weight may have."""
    return next(form for form in _USUAL if each.allows_block(form.bits, form.block))


def bytes_for_bits(model: ir.Model, stores: Sequence[WeightMatrix], average_bits: float) -> int:
    """The bytes that the stores may take, so that the model's weights have these bits each."""
    stored = {value for each in stores for value in (each.weight, *each.copies)}
    values = [value for graph in graphs_of(model) for value in graph.initializers.values()]
    tensors = [value.const_value for value in values if value not in stored]
    count = sum(t.size for t in tensors if t is not None and t.dtype in FLOATS)
    count += sum(each.size for each in stores)  # a weight that is read in two layouts counts twice
    return int(average_bits * count / 8) - _other_bytes(model, stores)


def bytes_for_file(model: ir.Model, stores: Sequence[WeightMatrix], size: int) -> int:
    """The bytes that the stores may take, so that the model's file has at most `size`."""
    bare = model.clone()
    for graph in graphs_of(bare):
        for value in graph.initializers.values():
            value.const_value = ir.tensor(np.zeros(0, np.float32), name=value.name)
    drop_traces(bare)  # as in what is written
    added = _ADDED_NODES * sum(len(each.sites) for each in stores)
    graph_bytes = int(to_proto(bare).ByteSize())
    return size - _other_bytes(model, stores) - graph_bytes - added


def _other_bytes(model: ir.Model, stores: Sequence[WeightMatrix]) -> int:
    """Bytes of the weights that are not in a store."""
    stored = {value for each in stores for value in (each.weight, *each.copies)}
    tensors = [value.const_value for value in stored]
    return weight_bytes(model) - sum(t.nbytes for t in tensors if t is not None)


def _rate(
    each: WeightMatrix, choices: Sequence[WeightFormat], inputs: Inputs
) -> list[Option[WeightFormat]]:
    """The bytes and the error of each way to store a weight."""
    rows, importance = sample_rows(each.matrix(), _RATED_ROWS), inputs.importance
    options = []
    for choice in choices:
        if not (each.allows_block(choice.bits, choice.block) and each.allows_bits(choice.bits)):
            continue
        if choice.scheme == "offsets" and not each.allows_offsets(choice.block):
            continue
        if choice.scheme == "zeros" and not each.allows_zeros(choice.bits, choice.block):
            continue
        blocks = round_weights(rows, *choice, importance=importance)
        error = relative_error(rows, blocks, importance)
        options.append(Option(choice, _nbytes(each, choice), error))
    each.forget()
    return options


def _nbytes(each: WeightMatrix, choice: WeightFormat) -> int:
    """The bytes of a stored weight, with scales of 16 bits."""
    rows, size = each.shape
    blocks = -(-size // choice.block)
    if choice.scheme == "offsets":
        more = 2 * padded_sums(blocks, choice.block)
        size, blocks = size + more, blocks + more // choice.block
    zeros = -(-rows * blocks * choice.bits // 8) if choice.scheme == "zeros" else 0
    return -(-rows * size * choice.bits // 8) + 2 * rows * blocks + zeros
