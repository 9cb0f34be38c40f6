"""Find out whether an attention mask is causal, by evaluating it.

Exporters write a causal mask in many ways. The nodes that compute a mask are evaluated here, for
several sizes if sizes are symbolic and for several contents if it depends on data, and compared:

    mask[..., i, j] is hidden wherever j > i              -> causal
    and equal to the last row everywhere else             -> causal, with the last row as the mask

A mask of symbolic size may depend on numbers, such as the width of a window: sizes beyond every
number in its computation are tried too. A mask of static size is evaluated in that size. One that
cannot be evaluated, or has other values, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.graph.operators import is_random
from onward.graph.scopes import bodies
from onward.passes.value_facts import Array, Dim, dims, is_constant, operators

_MOST_NODES = 500
_LARGEST = 1 << 26  # elements of a mask
_LONGEST = 4200  # the longest sequence that is tried
_SMALL = ((2, 5), (3, 12), (1, 9))  # the first size of an input, and every other one
_UNBOUNDED = 1 << 31  # numbers beyond it mean "to the end"
_HIDDEN = -3e4  # added to a score, it hides the key: the exponential is 0 next to any other
_TRIES = 3  # contents that are drawn for a mask of data
# The operators that compute masks; others, such as MatMul, show that a value is learnt.
MASK_OPERATORS = frozenset(
    operators(
        "Abs Add And BitwiseAnd BitwiseNot BitwiseOr Cast Clip Concat ConstantOfShape CumSum Div "
        "Equal Expand Flatten Gather GatherElements GatherND Greater GreaterOrEqual Identity IsInf "
        "IsNaN Less LessOrEqual Max Min Mod Mul Neg Not Or Pad Range ReduceMax ReduceMin ReduceSum "
        "Reshape ScatterElements ScatterND Shape Sign Size Slice Split Squeeze Sub Tile Transpose "
        "Trilu Unsqueeze Where Xor"
    )
)


@dataclass(frozen=True)
class MaskMeaning:
    """Whether a mask is causal, and whether its last row hides keys (`padded`)."""

    causal: bool
    padded: bool


class MaskReader:
    """Evaluates the masks of a model, each once.

    `parameters` name initializers that training changes: masks that depend on them have no meaning.
    """

    def __init__(self, model: ir.Model, parameters: Collection[str] = ()) -> None:
        self._graph, self._parameters = model.graph, frozenset(parameters)
        self._opset = model.opset_imports.get("", 1)
        self._found: dict[tuple[ir.Value, Dim, Dim], MaskMeaning | None] = {}

    def read(self, mask: ir.Value, queries: Dim, keys: Dim) -> MaskMeaning | None:
        """The meaning of a mask (boolean, or added to scores of this size); None for any other."""
        if (mask, queries, keys) not in self._found:
            self._found[mask, queries, keys] = self._evaluate_meaning(mask, queries, keys)
        return self._found[mask, queries, keys]

    def spans(self, mask: ir.Value, queries: Dim, keys: Dim) -> bool:
        """Whether a mask is finite, and has the scores' size or broadcasts over queries.

        Data is 0 or 1 here: with other numbers, sums and products with the lowest number overflow.
        """
        tried = False
        for array, sizes in self._trials(mask, numbers=[0, 1]):
            if array is None or array.ndim < 2 or not np.isfinite(array).all():
                return False
            rows, columns = _size(queries, sizes), _size(keys, sizes)
            if array.shape[-2] not in (1, rows) or array.shape[-1] != columns:
                return False
            tried = True
        return tried

    def is_always(self, y: ir.Value, x: ir.Value, function: Callable[[Array], Array]) -> bool:
        """Whether y = function(x) in every trial."""
        tried = False
        for array, sizes in self._trials(y, x):
            drawn = _drawn(x, sizes)
            if array is None or not np.array_equal(array, function(drawn)):
                return False
            tried = True
        return tried

    def _evaluate_meaning(self, mask: ir.Value, queries: Dim, keys: Dim) -> MaskMeaning | None:
        found: set[MaskMeaning] | None = None
        for array, sizes in self._trials(mask):
            if array is None:
                return None
            meanings = _meanings(array, _size(queries, sizes), _size(keys, sizes))
            found = meanings if found is None else found & meanings
            if not found:
                return None
        return min(found or (), key=lambda each: (each.padded, each.causal), default=None)

    def _trials(
        self, value: ir.Value, cut: ir.Value | None = None, numbers: list[int] | None = None
    ) -> Iterator[tuple[Array | None, dict[str, int]]]:
        """The value for each size and content that is tried; None if it cannot be evaluated.

        The value `cut`, if given, is fed with numbers instead of being computed.
        """
        source = _source(value, self._graph, self._parameters, cut)
        if source is None:
            yield None, {}
            return
        for sizes in _sizes_to_try(source):
            if max(sizes.values(), default=0) > _LONGEST:
                yield None, sizes
                return
            for feeds in _contents(source, sizes, numbers or _numbers(source)):
                yield self._evaluate(source, feeds), sizes

    def _evaluate(self, source: _Source, feeds: Mapping[str, Array]) -> Array | None:
        """The mask's values for these feeds; None if they cannot be evaluated."""
        given = feeds.get(str(source.mask.name))
        if given is not None:
            return given
        try:
            with np.errstate(all="ignore"):
                (result,) = source.evaluator(self._opset).run(None, dict(feeds))
        except Exception:  # an operator that the evaluator lacks, or sizes that do not fit
            return None
        array = np.asarray(result)
        return array if 0 < array.size <= _LARGEST else None


# -- the nodes that compute a mask ----------------------------------------------------------------


@dataclass
class _Source:
    """The nodes that compute a mask, and their inputs."""

    mask: ir.Value
    nodes: list[ir.Node]
    constants: dict[str, Array]
    data: list[ir.Value]  # inputs whose contents the mask depends on
    shapes: list[ir.Value]  # values of which only the shape is read
    cut: ir.Value | None = None  # a value that is fed instead of being computed
    _evaluator: ReferenceEvaluator | None = None

    def evaluator(self, opset: int) -> ReferenceEvaluator:
        if self._evaluator is None:
            leaves = [node.outputs[0] for node in self.shape_nodes()]
            constants = [value for value in self._reads() if value.name in self.constants]
            inputs = dict.fromkeys([*constants, *self.fed(), *leaves])
            view = ir.GraphView(
                inputs=[ir.val(str(v.name), type=v.type) for v in inputs],
                outputs=[self.mask],
                nodes=[node for node in self.nodes if node.outputs[0] not in leaves],
                opset_imports={"": opset},
                name="mask",
            )
            proto = ir.to_proto(ir.Model(view, ir_version=onnx.IR_VERSION))  # type: ignore[arg-type]
            self._evaluator = ReferenceEvaluator(proto)
        return self._evaluator

    def fed(self) -> list[ir.Value]:
        return self.data if self.cut is None else [*self.data, self.cut]

    def shape_nodes(self) -> list[ir.Node]:
        """The Shape nodes of values that are not evaluated."""
        return [n for n in self.nodes if n.op_type == "Shape" and n.inputs[0] in self.shapes]

    def _reads(self) -> Iterator[ir.Value]:
        for node in self.nodes:
            yield from (value for value in node.inputs if value is not None)

    def symbols(self) -> dict[str, bool]:
        """The symbolic sizes, and whether each is the first of its input."""
        found: dict[str, bool] = {}
        for value in (*self.fed(), *self.shapes):
            for axis, size in enumerate(dims(value) or ()):
                if not isinstance(size, int):
                    found.setdefault(str(size), axis == 0)
        return found


def _source(
    mask: ir.Value, graph: ir.Graph, parameters: Collection[str], cut: ir.Value | None = None
) -> _Source | None:
    """The nodes that compute a mask; None if one of them is not an operator of masks."""
    known = {d for value in graph.inputs for d in dims(value) or () if isinstance(d, str)}
    nodes: dict[ir.Node, None] = {}
    source = _Source(mask, [], {}, [], [], cut)
    if cut is not None and not _is_sized(cut, known):
        return None
    waiting, seen = [mask], {mask}
    while waiting:
        value = waiting.pop()
        if value is cut:
            continue
        node = value.producer()
        if node is None:
            if not _add_leaf(value, source, graph, parameters):
                return None
            continue
        if node in nodes:
            continue
        nodes[node] = None
        x = node.inputs[0] if node.inputs else None
        if node.op_type == "Shape" and node.domain == "" and _is_sized(x, known):
            assert x is not None
            source.shapes.append(x)
            continue
        if not _is_plain(node) or len(nodes) > _MOST_NODES:
            return None
        given = [value for value in node.inputs if value is not None and value not in seen]
        seen.update(given)
        waiting += given
    source.nodes = [node for node in graph if node in nodes]
    return source if len(source.nodes) == len(nodes) else None  # all of them in this graph


def _is_plain(node: ir.Node) -> bool:
    return (
        node.domain == ""
        and node.op_type in MASK_OPERATORS
        and not bodies(node)
        and not is_random(node)
    )


def _is_sized(x: ir.Value | None, known: Collection[str]) -> bool:
    """Whether the sizes of a value are numbers, or symbolic sizes of the model's inputs."""
    sizes = dims(x)
    return sizes is not None and all(isinstance(d, int) or d in known for d in sizes)


def _add_leaf(
    value: ir.Value, source: _Source, graph: ir.Graph, parameters: Collection[str]
) -> bool:
    """Record a constant or an input; False if a mask cannot depend on it."""
    if value.name in parameters:
        return False
    if is_constant(value):
        assert value.const_value is not None
        array = np.asarray(value.const_value.numpy())
        source.constants[str(value.name)] = array
        return array.dtype.kind in "biu" or array.size <= 1 or _only_hides(array)
    sizes = dims(value)
    if value not in graph.inputs or value.dtype is None or sizes is None or None in sizes:
        return False
    source.data.append(value)
    return True


def _only_hides(array: Array) -> bool:
    """Whether added numbers are a mask: each is 0 or hides the key, and some hide it."""
    hidden = array <= _HIDDEN
    return bool(hidden.any() and ((array == 0) | hidden).all())


# -- sizes and contents of the trials --------------------------------------------------------------


def _sizes_to_try(source: _Source) -> Iterator[dict[str, int]]:
    """Numbers for the symbolic sizes: small ones, then one beyond every number in the mask."""
    symbols = source.symbols()
    if not symbols:
        yield {}
        return
    for first, rest in _SMALL:
        yield {name: first if is_first else rest for name, is_first in symbols.items()}
    for number in sorted(_lengths(source)):
        for name in symbols:
            yield dict.fromkeys(symbols, 2) | {name: number}


def _lengths(source: _Source) -> set[int]:
    """Lengths beyond the numbers in a mask's computation."""
    found: set[int] = set()
    for array in source.constants.values():
        if array.size > 64:
            found.update(n for n in array.shape if n > 8)
            continue
        for number in array.astype(np.float64).reshape(-1):
            if 8 < abs(number) < _UNBOUNDED and not (array.dtype.kind == "f" and number < 0):
                found.add(int(abs(number)) + 2)
    return found


def _contents(
    source: _Source, sizes: Mapping[str, int], numbers: list[int]
) -> Iterator[dict[str, Array]]:
    """Feeds of these sizes; several if the mask depends on data."""
    feeds = dict(source.constants)
    for node in source.shape_nodes():
        shape = [_size(d, sizes) for d in dims(node.inputs[0]) or ()]
        start, end = (node.attributes.get(name) for name in ("start", "end"))
        part = slice(None if start is None else start.value, None if end is None else end.value)
        feeds[str(node.outputs[0].name)] = np.array(shape, np.int64)[part]
    if source.cut is not None:
        feeds[str(source.cut.name)] = _drawn(source.cut, sizes)
    if not source.data:
        yield feeds
        return
    rng = np.random.default_rng(0)
    for attempt in range(_TRIES + 2):
        for value in source.data:
            assert value.dtype is not None
            shape = [_size(d, sizes) for d in dims(value) or ()]
            drawn = rng.choice(numbers, shape) if attempt > 1 else np.full(shape, attempt)
            feeds[str(value.name)] = drawn.astype(value.dtype.numpy())
        yield dict(feeds)


def _size(size: Dim, sizes: Mapping[str, int]) -> int:
    """A size as a number; -1, which no value has, if it is unknown."""
    return size if isinstance(size, int) else sizes.get(str(size), -1)


def _drawn(value: ir.Value, sizes: Mapping[str, int]) -> Array:
    """An array of a value's shape with all elements different, the same in every call."""
    shape = [_size(d, sizes) for d in dims(value) or ()]
    assert value.dtype is not None
    count = int(np.prod(shape))
    return np.arange(count).reshape(shape).astype(np.float32).astype(value.dtype.numpy())


def _numbers(source: _Source) -> list[int]:
    """Numbers for data: 0, 1, and those around the constants that it may be compared to."""
    found = {0, 1}
    for array in source.constants.values():
        if array.size == 1 and array.dtype.kind in "iuf":
            number = float(array.reshape(()))
            if abs(number) < _UNBOUNDED and number == int(number):
                found.update((int(number) - 1, int(number), int(number) + 1))
    return sorted(found)


# -- the meaning of evaluated masks ----------------------------------------------------------------


def _meanings(mask: Array, queries: int, keys: int) -> set[MaskMeaning]:
    """All meanings that agree with a mask of one size."""
    if mask.ndim < 2 or mask.shape[-1] != keys or mask.shape[-2] not in (1, queries):
        return set()
    rows, last, hidden = mask.shape[-2], mask[..., -1:, :], _hidden(mask)
    padded = hidden is None or bool(hidden[..., -1:, :].any())
    found: set[MaskMeaning] = set()
    if rows > 1 and (mask == last).all():
        found.add(MaskMeaning(causal=False, padded=True))
    if (rows == 1 or found) and not padded:
        found.add(MaskMeaning(causal=False, padded=False))
    if rows > 1 and hidden is not None and _is_causal(mask, hidden):
        found.add(MaskMeaning(causal=True, padded=True))
        found |= set() if padded else {MaskMeaning(causal=True, padded=False)}
    return found


def _is_causal(mask: Array, hidden: Array) -> bool:
    """Whether a mask hides later keys, and otherwise the keys that its last row hides."""
    rows, keys = mask.shape[-2:]
    later, last = ~np.tri(rows, keys, dtype=bool), mask[..., -1:, :]
    if rows != keys or not (hidden | ~later).all() or not ((mask == last) | later).all():
        return False
    return not hidden[..., -1:, :].any() or _surely_hides(mask, hidden)


def _surely_hides(mask: Array, hidden: Array) -> bool:
    """Whether a whole row can be hidden: equal finite numbers along a row would hide nothing."""
    return mask.dtype == bool or bool(np.isneginf(mask[hidden]).all())


def _hidden(mask: Array) -> Array | None:
    """Where a mask hides keys; None if it adds anything but 0 elsewhere."""
    if mask.dtype == bool:
        return ~mask
    hidden = mask <= _HIDDEN
    return hidden if bool(((mask == 0) | hidden).all()) else None
