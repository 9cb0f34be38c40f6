"""Infer how large constants would grow if they were folded, computing almost nothing.

onnxruntime folds constants while it loads a model. Here the shapes of the same nodes are inferred
(and the values of the few small ones that shapes are made of), so that a result of a trillion
elements is refused, not computed. An unknown size is bounded by providers/ort/folding_limit.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.graph.dtypes import BY_NUMBER
from onward.graph.operators import BROADCASTING, REDUCTIONS, SAME_SHAPE, VARIADIC, named
from onward.graph.scan.onnx_messages import Array, ScannedNode

_MOST_VALUES = 64  # elements of a result that is computed
_HARD_WORK = 1 << 32  # multiplications that an operator without a rule may need


@dataclass(frozen=True, slots=True)
class FoldedConstant:
    """A value that no feed changes; unknown facts are None."""

    size: int | None = None  # elements, at most
    dims: tuple[int, ...] | None = None
    value: Array | None = None
    letters: int = 0  # characters of its strings, at most

    @classmethod
    def of(
        cls, dims: Sequence[int], value: Array | None = None, letters: int = 0
    ) -> FoldedConstant:
        return cls(math.prod(dims), tuple(dims), value, letters)


UNKNOWN = FoldedConstant()
Given = Sequence[FoldedConstant]
Rule = Callable[[ScannedNode, Given], FoldedConstant]


@dataclass(slots=True)
class Growth:
    """What folding would add to a graph."""

    work: int = 0  # elements computed
    unknown: int = 0  # results whose size is not known beforehand
    heavy: bool = False  # one may take long, or exceed what the engine estimates: do not fold

    def add(self, other: Growth, times: int, with_constants: bool) -> None:
        """Add a function's growth, called `times`; `with_constants`: a call has only constants."""
        self.work += other.work * times
        self.unknown += other.unknown * times
        self.heavy |= other.heavy and with_constants


def folded_result(node: ScannedNode, given: Given, growth: Growth) -> FoldedConstant:
    """The result of a node whose inputs are all constants; its cost is added to `growth`."""
    rule = RULES.get(node.op) if node.domain == "" else None
    value = _evaluate(node, given)
    if value is not None:
        return FoldedConstant.of(value.shape, value)
    try:
        result = UNKNOWN if rule is None else rule(node, given)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):
        result = UNKNOWN  # an invalid node: the engine reports it
    if result.size is None:
        growth.unknown += rule not in _NEVER_GROW
        sizes = [each.size for each in given]
        growth.heavy |= rule is None and (
            None in sizes or math.prod(size or 1 for size in sizes) > _HARD_WORK
        )
        growth.heavy |= node.op.startswith("String")
        return result
    growth.work += result.size + (_products(given) if node.op in ("MatMul", "Gemm") else 0)
    return result


def _products(given: Given) -> int:
    """Multiplications of a matrix product, counted as a sixteenth of an element each."""
    first, second = given[0], given[1]
    if not first.dims or not second.dims:
        return (first.size or 1) * (second.size or 1) // 16
    return (first.size or 1) * second.dims[-1] // 16


# -- rules: the shape of a result ------------------------------------------------------------------


def _same(node: ScannedNode, given: Given) -> FoldedConstant:
    return FoldedConstant(given[0].size, given[0].dims, None, given[0].letters)


def _smaller(node: ScannedNode, given: Given) -> FoldedConstant:
    return FoldedConstant(given[0].size, None, None, given[0].letters)


def _broadcast(node: ScannedNode, given: Given) -> FoldedConstant:
    dims: tuple[int, ...] = ()
    for each in given:
        if each.dims is None:
            sizes = [other.size for other in given]
            return UNKNOWN if None in sizes else FoldedConstant(math.prod(s or 0 for s in sizes))
        dims = _joined(dims, each.dims)
    letters = sum(each.letters for each in given)
    return FoldedConstant.of(dims, None, letters if node.op == "StringConcat" else letters // 2)


def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


def _ints(constant: FoldedConstant) -> list[int]:
    """The numbers of a constant; ValueError if they are unknown, as the result then is."""
    if constant.value is None:
        raise ValueError
    return [int(item) for item in constant.value.reshape(-1).tolist()]


def _dims(constant: FoldedConstant) -> tuple[int, ...]:
    if constant.dims is None:
        raise ValueError
    return constant.dims


def _of_shape(node: ScannedNode, given: Given) -> FoldedConstant:
    return FoldedConstant.of([max(size, 0) for size in _ints(given[0])])


def _expand(node: ScannedNode, given: Given) -> FoldedConstant:
    return FoldedConstant.of(
        _joined(_dims(given[0]), tuple(_ints(given[1]))), None, given[0].letters
    )


def _tile(node: ScannedNode, given: Given) -> FoldedConstant:
    repeats = _ints(given[1])
    if given[0].dims is not None and len(repeats) == len(given[0].dims):
        sizes = zip(given[0].dims, repeats)
        return FoldedConstant.of(
            [size * max(times, 0) for size, times in sizes], None, given[0].letters
        )
    if given[0].size is None:
        return UNKNOWN
    return FoldedConstant(given[0].size * math.prod(max(times, 0) for times in repeats))


def _range(node: ScannedNode, given: Given) -> FoldedConstant:
    start, limit, delta = (float(each.value.item()) for each in given if each.value is not None)
    return FoldedConstant.of([max(math.ceil((limit - start) / delta), 0)])


def _pad(node: ScannedNode, given: Given) -> FoldedConstant:
    dims = list(_dims(given[0]))
    pads = _ints(given[1]) if len(given) > 1 else node.attributes["pads"].ints
    axes = _ints(given[3]) if len(given) > 3 else range(len(dims))
    half = len(pads) // 2
    for axis, before, after in zip(axes, pads[:half], pads[half:]):
        dims[axis] += before + after
    return FoldedConstant.of([max(size, 0) for size in dims])


def _one_hot(node: ScannedNode, given: Given) -> FoldedConstant:
    (depth,) = _ints(given[1])
    return UNKNOWN if given[0].size is None else FoldedConstant(given[0].size * max(depth, 0))


def _concat(node: ScannedNode, given: Given) -> FoldedConstant:
    sizes = [each.size for each in given]
    if None in sizes:
        return UNKNOWN
    total = sum(size or 0 for size in sizes)
    first, axis = given[0].dims, node.attributes.get("axis")
    if first is None or axis is None or axis.number is None or 0 in first:
        return FoldedConstant(total)
    inner = math.prod(first) // first[axis.number]
    dims = list(first)
    dims[axis.number] = total // inner
    return FoldedConstant.of(dims)


def _gather(node: ScannedNode, given: Given) -> FoldedConstant:
    axis = node.attributes.get("axis")
    at = axis.number if axis is not None and axis.number is not None else 0
    data, indices = _dims(given[0]), given[1]
    if indices.dims is None and indices.size is not None:
        return FoldedConstant(math.prod(data) // max(data[at], 1) * indices.size)
    at %= len(data)
    return FoldedConstant.of([*data[:at], *_dims(indices), *data[at + 1 :]])


def _matmul(node: ScannedNode, given: Given) -> FoldedConstant:
    a, b = _dims(given[0]), _dims(given[1])
    batch = _joined(a[:-2], b[:-2])
    return FoldedConstant.of(
        [*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ())]
    )


def _gemm(node: ScannedNode, given: Given) -> FoldedConstant:
    a, b = _dims(given[0]), _dims(given[1])
    turned = [node.attributes.get(name) for name in ("transA", "transB")]
    rows, columns = (each.number if each is not None else 0 for each in turned)
    return FoldedConstant.of([a[1 if rows else 0], b[0 if columns else 1]])


def _reshape(node: ScannedNode, given: Given) -> FoldedConstant:
    size = given[0].size
    if size is None or len(given) < 2 or given[1].value is None:
        return FoldedConstant(size, None, None, given[0].letters)
    wanted, old = _ints(given[1]), given[0].dims
    allow_zero = node.attributes.get("allowzero")
    if not (allow_zero is not None and allow_zero.number) and old is not None:  # 0: as it was
        wanted = [
            old[axis] if not each and axis < len(old) else each for axis, each in enumerate(wanted)
        ]
    if not all(wanted):
        return FoldedConstant(size)
    known = math.prod(each for each in wanted if each > 0)
    return FoldedConstant.of([each if each > 0 else size // known for each in wanted])


def _transpose(node: ScannedNode, given: Given) -> FoldedConstant:
    if given[0].dims is None:
        return _smaller(node, given)
    perm = node.attributes.get("perm")
    order = perm.ints if perm is not None else range(len(given[0].dims))[::-1]
    return FoldedConstant.of([given[0].dims[axis] for axis in order], None, given[0].letters)


def _unsqueeze(node: ScannedNode, given: Given) -> FoldedConstant:
    attribute = node.attributes.get("axes")
    axes = _ints(given[1]) if len(given) > 1 else attribute.ints if attribute is not None else []
    if given[0].dims is None:
        return _smaller(node, given)
    dims = list(given[0].dims)
    for axis in sorted(axis % (len(dims) + len(axes)) for axis in axes):
        dims.insert(axis, 1)
    return FoldedConstant.of(dims, None, given[0].letters)


def _resize(node: ScannedNode, given: Given) -> FoldedConstant:
    dims = _dims(given[0])
    last = given[-1].value
    if last is None or last.size == 0 or len(given) < 2:
        return UNKNOWN
    items = [float(item) for item in last.reshape(-1).tolist()]
    if last.dtype.kind == "f":
        items = [size * scale for size, scale in zip(dims[-len(items) :], items)]
    return FoldedConstant.of(
        [*dims[: len(dims) - len(items)], *(max(int(item), 0) for item in items)]
    )


def _window(node: ScannedNode, given: Given) -> FoldedConstant:
    return FoldedConstant.of([max(_ints(given[0])[0], 0)])


def _crop(node: ScannedNode, given: Given) -> FoldedConstant:
    axes = node.attributes.get("axes")
    dims, sizes = list(_dims(given[0])), _ints(given[1])
    for axis, size in zip(axes.ints if axes is not None else range(len(dims)), sizes):
        dims[axis] = max(size, 0)
    return FoldedConstant.of(dims)


def _unknown(node: ScannedNode, given: Given) -> FoldedConstant:
    return UNKNOWN  # of unknown size, but computed in one pass


def _shape(node: ScannedNode, given: Given) -> FoldedConstant:
    return FoldedConstant.of([64])  # at most


RULES: dict[str, Rule] = {
    **dict.fromkeys(SAME_SHAPE, _same),
    **dict.fromkeys(REDUCTIONS | named(
        "ArgMax ArgMin Compress DepthToSpace Flatten Slice SpaceToDepth Split Squeeze TopK Unique"
        ), _smaller),
    # PRelu, too: a kernel may broadcast its slope both ways
    **dict.fromkeys(
        BROADCASTING | VARIADIC | named("BitShift PRelu StringConcat Where"), _broadcast),
    **dict.fromkeys(named(
        "ConcatFromSequence GatherND NonZero OptionalGetElement ScatterND SequenceAt "
        "SequenceConstruct SequenceErase SequenceInsert SequenceLength SplitToSequence"), _unknown),
    **dict.fromkeys(named("HannWindow HammingWindow BlackmanWindow"), _window),
    "CastLike": _same,
    "CenterCropPad": _crop,
    "Concat": _concat,
    "ConstantOfShape": _of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": lambda node, given: FoldedConstant(given[1].size, given[1].dims),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Size": lambda node, given: FoldedConstant.of([]),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
}  # fmt: skip

# Results that are never larger than the first input.
_NEVER_GROW = (_same, _smaller, _reshape, _transpose, _unsqueeze, _shape)


# -- values: the arithmetic that shapes are made of ------------------------------------------------

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "Floor": np.floor,
    "Identity": np.asarray,
    "Equal": np.equal,
    "Where": np.where,
    "Div": lambda a, b: a // b if a.dtype.kind == "i" else a / b,
    "ReduceProd": lambda a, *_: np.prod(a, keepdims=True),
    "Squeeze": lambda a, *_: a.reshape([d for d in a.shape if d != 1]),
    "Unsqueeze": lambda a, *_: a.reshape([1, *a.shape]) if a.ndim == 0 else a,
    "Gather": lambda a, i: a[i] if a.ndim == 1 else a.reshape(-1)[:0],
}
_CAST_TO = frozenset((1, 6, 7, 9, 10, 11))  # floats, int32, int64 and bool


def _evaluate(node: ScannedNode, given: Given) -> Array | None:
    """The value of a small result of shape arithmetic; None for any other."""
    if node.domain or (node.op not in _ARITHMETIC and node.op not in ("Cast", "Concat", "Shape")):
        return None
    if node.op == "Shape" and given[0].dims is not None:
        return _sizes_of(node, given[0].dims)
    arrays = [each.value for each in given if each.value is not None]
    if len(arrays) != len(given) or sum(array.size for array in arrays) > _MOST_VALUES:
        return None
    try:
        with np.errstate(all="ignore"):
            if node.op == "Cast":
                to = node.attributes["to"].number
                if to not in _CAST_TO:
                    return None
                result: Any = arrays[0].astype(BY_NUMBER[to].dtype)
            elif node.op == "Concat":
                result = np.concatenate(arrays)
            else:
                result = np.asarray(_ARITHMETIC[node.op](*arrays))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError):
        return None
    return result if 0 < result.size <= _MOST_VALUES else None


def _sizes_of(node: ScannedNode, dims: tuple[int, ...]) -> Array | None:
    """The value of Shape, or of the part of it that the attributes choose."""
    bounds = {name: attribute.number for name, attribute in node.attributes.items()}
    if None in bounds.values():  # of a function's attribute
        return None
    chosen = dims[bounds.get("start", 0) : bounds.get("end")]
    return np.array(chosen, np.int64) if max(chosen, default=0) < 1 << 63 else None
