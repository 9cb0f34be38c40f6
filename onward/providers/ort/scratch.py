"""What onnxruntime's CPU kernels do with memory: which write in place, which need scratch.

Both tables were read off onnxruntime itself, node by node, with its own record of allocations
(session.collect_node_memory_stats_to_file); tests/providers/ort/test_scratch.py asks it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from onward.graph.lifetimes import MemoryRules, Pairs, aligned, spelled
from onward.graph.operators import VIEWS
from onward.providers.defect import ARM, architecture

Shape = tuple[int, ...]
Shapes = Callable[[ir.Value], Shape | None]  # the concrete shape of a value

_FIRST: Pairs = ((0, 0),)
ALIASES: Mapping[str, Pairs] = {
    **dict.fromkeys(VIEWS, _FIRST),
    "OptionalGetElement": _FIRST,
}
IN_PLACE: Mapping[str, Pairs] = {
    **dict.fromkeys(
        (
            *("Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Scatter"),
            *("ScatterElements", "Selu", "Shrink", "Sigmoid", "Softmax", "Softplus", "Softsign"),
            *("Tanh", "ThresholdedRelu", "Trilu"),
        ),
        _FIRST,
    ),
    "com.microsoft::FusedConv": ((3, 0),),  # the sum that it adds to
}
RULES = MemoryRules(ALIASES, IN_PLACE, reuses_dead=True)

_PER_THREAD = 64 << 10  # a convolution's columns, cut to what a core's cache holds
_WORTH_A_THREAD = 64 << 10  # multiplications
_IS_ARM = architecture() == ARM


def scratch(node: ir.Node, shapes: Shapes, threads: int) -> list[int]:
    """The bytes of each buffer that a kernel takes while it runs, beside its outputs."""
    rule = _SCRATCH.get(spelled(node))
    if rule is None:
        return []
    try:
        return [size for size in rule(_Node(node, shapes), threads) if size]
    except LookupError:  # a shape that nobody knows
        return []


class _Node:
    """A node with what its rule asks for: concrete shapes, widths, attributes."""

    def __init__(self, node: ir.Node, shapes: Shapes) -> None:
        self._node, self._shapes = node, shapes
        self.given = sum(value is not None for value in node.inputs)

    def input(self, place: int) -> Shape:
        value = self._node.inputs[place]
        return _known(None if value is None else self._shapes(value))

    def output(self, place: int = 0) -> Shape:
        return _known(self._shapes(self._node.outputs[place]))

    def takes(self, place: int) -> bool:
        return place < len(self._node.inputs) and self._node.inputs[place] is not None

    def gives(self, place: int) -> bool:
        return place < len(self._node.outputs) and bool(self._node.outputs[place].name)

    @property
    def output_bytes(self) -> int:
        dtype = self._node.outputs[0].dtype
        return math.prod(self.output()) * int(dtype.itemsize if dtype else 4)

    def ints(self, name: str, default: list[int]) -> list[int]:
        found = self._node.attributes.get(name)
        return default if found is None else list(found.as_ints())

    def int(self, name: str, default: int) -> int:
        found = self._node.attributes.get(name)
        return default if found is None else found.as_int()

    def text(self, name: str, default: str) -> str:
        found = self._node.attributes.get(name)
        return default if found is None else found.as_string()


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise LookupError("a shape that nobody knows")
    return shape


def _conv(node: _Node, threads: int) -> list[int]:
    """The columns of the image: all of them where filters outnumber pixels, else a piece each."""
    x, w, y = node.input(0), node.input(1), node.output()
    rank = len(x) - 2
    filters, channels, kernel = w[0] // node.int("group", 1), w[1], w[2:]
    pixels, depth = math.prod(y[2:]), channels * math.prod(kernel)
    dense = all(size == 1 for size in node.ints("dilations", [1] * rank))
    steady = all(size == 1 for size in node.ints("strides", [1] * rank))
    pads = _pads(node, rank)
    if steady and not any(pads):
        whole = rank == 2 and (kernel[1] == x[3] or (kernel[0] == x[2] and kernel[1] == 1))
        if depth == channels or (whole and channels == 1 and dense):
            return []  # the image itself is the matrix
    if filters > pixels:
        return [pixels * depth * 4]
    alone = rank == 2 and filters == channels == 1 and tuple(kernel) == (3, 3)
    if _IS_ARM and alone and dense and steady and max(pads) <= 1:
        return [(x[3] + 2) * 4]  # a row of zeros
    return [_conv_threads(filters * pixels * depth, pixels, threads) * _PER_THREAD]


def _pads(node: _Node, rank: int) -> list[int]:
    """Whether an image is padded: where it is left to the kernel, as if it were by one."""
    automatic = node.text("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER") and max(node.input(1)[2:]) > 1:
        return [1] * (2 * rank)
    return node.ints("pads", [0] * (2 * rank)) if automatic == "NOTSET" else [0] * (2 * rank)


def _conv_threads(work: int, pixels: int, threads: int) -> int:
    """How many threads a convolution is worth, each with at least 16 pixels."""
    count = min(threads, work // _WORTH_A_THREAD + 1)
    if count > 1:
        stride = aligned(math.ceil(pixels / count), 16)
        count = 1 if stride >= pixels else count - (stride * (count - 1) >= pixels)
    return count


def _conv_transpose(node: _Node, threads: int) -> list[int]:
    x, w = node.input(0), node.input(1)
    return [math.prod(w[1:]) * math.prod(x[2:]) * 4]


def _recurrent(node: _Node, gates: int, states: int, bias: int) -> list[int]:
    """Gates for every step, state for one; a bidirectional net turns its sequence around."""
    steps, batch, size = node.input(0)
    hidden = node.input(2)[-1]
    both = node.text("direction", "forward") == "bidirectional"
    one = gates * steps * batch * hidden + states * batch * hidden + bias * hidden + batch
    turned = steps * batch * (size + hidden) if both else 0
    return [(one * (1 + both) + turned) * 4]


def _lstm(node: _Node, threads: int) -> list[int]:
    """A last state that nobody asks for is kept all the same."""
    kept = 2 + (not node.gives(1)) + (not node.gives(2))
    return _recurrent(node, 4, 1 + kept, 6 if node.takes(3) else 2)


def _gru(node: _Node, threads: int) -> list[int]:
    return _recurrent(node, 3, 2 + (not node.gives(1)) + 3 * node.takes(3), 0)


def _rnn(node: _Node, threads: int) -> list[int]:
    steps, batch, _ = node.input(0)
    return [steps * batch * node.input(2)[-1] * 4]


def _softmax(node: _Node, threads: int) -> list[int]:
    """Along another axis than the last: transposed, and back."""
    axis, rank = node.int("axis", -1), len(node.output())
    return [] if axis in (-1, rank - 1) else [node.output_bytes] * 2


def _once(node: _Node, threads: int) -> list[int]:
    return [node.output_bytes]


def _twice(node: _Node, threads: int) -> list[int]:
    return [node.output_bytes] * 2


def _variadic(node: _Node, threads: int) -> list[int]:
    return [node.output_bytes] if node.given > 2 else []


def _as_int32(node: _Node, threads: int) -> list[int]:
    return [math.prod(node.output()) * 4]


def _attention(node: _Node, threads: int) -> list[int]:
    """Every query against every key."""
    q, k = node.input(0), node.input(1)
    if len(q) == 4:
        return [math.prod(q[:3]) * k[2] * 4]
    return [q[0] * node.int("q_num_heads", 1) * q[1] * k[1] * 4]


def _local_response(node: _Node, threads: int) -> list[int]:
    batch, channels, *image = node.input(0)
    pixels = math.prod(image)
    padded = (channels + node.int("size", 1) - 1) * pixels
    return [batch * channels * pixels * 4, padded * 4]


_SCRATCH: Mapping[str, Callable[[_Node, int], list[int]]] = {
    "Conv": _conv,
    "com.microsoft::FusedConv": _conv,
    "ConvTranspose": _conv_transpose,
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN": _rnn,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _variadic),
    **dict.fromkeys(("Where", "MeanVarianceNormalization"), _twice),
    **dict.fromkeys(("Einsum", "com.microsoft::BiasGelu"), _once),
    **dict.fromkeys(("QLinearMatMul", "com.microsoft::QGemm"), _as_int32),
    "Attention": _attention,
    "LRN": _local_response,
}
