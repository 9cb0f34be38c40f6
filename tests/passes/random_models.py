"""A hypothesis strategy that draws small models of every shape that a pass may meet.

Elementwise, matrix and image operators, moved and reduced axes, values read twice, initializers
read twice, initializers that feeds override, outputs in the middle of the graph, subgraphs that
capture, sizes that only the feeds know, formulas that a fusion is meant to see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
OPSETS = (15, 17, 21)  # of older ones the reference evaluator has some wrong


@dataclass(frozen=True)
class Value:
    name: str
    shape: Shape


@dataclass(frozen=True)
class Drawn:
    """A model and feeds for it."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


@dataclass
class Sketch:
    """A graph while it is drawn."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    overridable: list[str] = field(default_factory=list)
    count: int = 0

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def value(self, least: int = 0) -> Value | None:
        """Any value so far of at least this rank, the newest ones more often."""
        fitting = [value for value in self.values if len(value.shape) >= least]
        if not fitting:
            return None
        return self.pick(fitting[-3:]) if self.draw(st.booleans()) else self.pick(fitting)

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: Array | list[int]) -> str:
        """An initializer; an equal one that exists may be read again, or stored again."""
        array = np.asarray(array)
        for name, other in self.initializers.items():
            same = other.dtype == array.dtype and np.array_equal(other, array)
            if same and name not in self.overridable and self.draw(st.booleans()):
                return name
        name = f"c{len(self.initializers)}"
        self.initializers[name] = array
        return name

    def weight(self, *shape: int) -> str:
        seed = self.draw(st.integers(0, 3))
        return self.constant(random(shape, seed))

    def add(self, operator: str, inputs: list[str], shape: Shape, **attributes: Any) -> Value:
        (value,) = self.add_many(operator, inputs, [shape], **attributes)
        return value

    def add_many(
        self, operator: str, inputs: list[str], shapes: list[Shape], **attributes: Any
    ) -> list[Value]:
        made = [Value(self.fresh(), shape) for shape in shapes]
        names = [value.name for value in made]
        node = helper.make_node(operator, inputs, names, name=f"n{self.count}", **attributes)
        self.nodes.append(node)
        self.values += made
        return made


def random(shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 0.5).astype(np.float32)


UNARY = ["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "Softplus", "Elu", "Erf", "Floor"]


def unary(s: Sketch, x: Value) -> None:
    s.add(s.pick(UNARY), [x.name], x.shape)


def binary(s: Sketch, x: Value) -> None:
    operator = s.pick(["Add", "Sub", "Mul", "Max", "Min"])
    others = [value for value in s.values if value.shape == x.shape]
    kind = s.pick(["value", "scalar", "one element", "last axis", "channel", "neutral"])
    if kind == "value":
        other = s.pick(others).name
    elif kind == "scalar":
        other = s.weight()
    elif kind == "one element":
        other = s.weight(1)
    elif kind == "last axis" and x.shape:
        other = s.weight(x.shape[-1])
    elif kind == "channel" and len(x.shape) >= 2:
        other = s.weight(x.shape[1], *(1,) * (len(x.shape) - 2))
    else:
        other = s.constant(
            np.full(s.pick([(), (1,)]) if x.shape else (), s.pick([0, 1]), np.float32)
        )
    if len(s.initializers.get(other, np.zeros(())).shape) > len(x.shape):
        return
    operands = [x.name, other] if s.draw(st.booleans()) else [other, x.name]
    s.add(operator, operands, x.shape)


def divide(s: Sketch, x: Value) -> None:
    s.add("Div", [x.name, s.constant(np.float32(s.pick([1, 2, 1.41421356, 6])))], x.shape)


def matmul(s: Sketch, x: Value) -> None:
    if len(x.shape) < 2:
        return
    out = s.pick([2, 3])
    y = s.add("MatMul", [x.name, s.weight(x.shape[-1], out)], (*x.shape[:-1], out))
    if s.draw(st.booleans()):
        s.add("Add", [y.name, s.weight(out)], y.shape)


def convolve(s: Sketch, x: Value) -> None:
    if len(x.shape) != 4 or min(x.shape[2:]) < 2:
        return
    group = s.pick([1, x.shape[1]])
    out, pad = x.shape[1] * s.pick([1, 2]), s.pick([0, 1])
    inputs = [x.name, s.weight(out, x.shape[1] // group, 2, 2)]
    if s.draw(st.booleans()):
        inputs.append(s.weight(out))
    shape = (x.shape[0], out, x.shape[2] + 2 * pad - 1, x.shape[3] + 2 * pad - 1)
    y = s.add("Conv", inputs, shape, group=group, pads=[pad] * 4, kernel_shape=[2, 2])
    if s.draw(st.booleans()):
        statistics = [s.weight(out) for _ in range(3)]
        variance = s.constant(np.abs(random((out,), 5)) + np.float32(0.1))
        s.add("BatchNormalization", [y.name, *statistics, variance], shape)
    elif s.draw(st.booleans()):
        s.add(s.pick(["Mul", "Add"]), [y.name, s.weight(out, 1, 1)], shape)


def pool(s: Sketch, x: Value) -> None:
    if len(x.shape) != 4 or min(x.shape[2:]) < 2:
        return
    shape = (*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1)
    s.add(s.pick(["MaxPool", "AveragePool"]), [x.name], shape, kernel_shape=[2, 2])


def transpose(s: Sketch, x: Value) -> None:
    order = s.draw(st.permutations(range(len(x.shape))))
    s.add("Transpose", [x.name], tuple(x.shape[axis] for axis in order), perm=order)


def reshape(s: Sketch, x: Value) -> None:
    size = int(np.prod(x.shape))
    first = s.pick([n for n in (1, 2, 3, size) if n and size % n == 0])
    shape = s.pick([(first, size // first), (size,), (1, *x.shape), x.shape])
    target = list(shape)
    if target and s.draw(st.booleans()):
        target[s.draw(st.integers(0, len(target) - 1))] = -1
    s.add("Reshape", [x.name, s.constant(np.asarray(target, np.int64))], shape)


def reshape_by_shape(s: Sketch, x: Value) -> None:
    """The first size kept, as exporters write it: reshape(x, concat(shape(x)[0], -1))."""
    if len(x.shape) < 2:
        return
    sizes = s.add("Shape", [x.name], (len(x.shape),))
    first = s.add("Gather", [sizes.name, s.constant(np.asarray(0, np.int64))], ())
    again = s.add("Unsqueeze", [first.name, s.constant(np.asarray([0], np.int64))], (1,))
    rest = s.constant(np.asarray([-1], np.int64))
    target = s.add("Concat", [again.name, rest], (2,), axis=0)
    for value in (sizes, first, again, target):
        s.values.remove(value)  # integers: not for the other operators
    shape = (x.shape[0], int(np.prod(x.shape[1:])))
    s.add("Reshape", [x.name, target.name], shape)


def squeeze(s: Sketch, x: Value) -> None:
    axis = s.draw(st.integers(0, len(x.shape)))
    wide = (*x.shape[:axis], 1, *x.shape[axis:])
    axes = s.constant(np.asarray([axis], np.int64))
    y = s.add("Unsqueeze", [x.name, axes], wide)
    if s.draw(st.booleans()):
        s.add("Squeeze", [y.name, axes], x.shape)


def concat(s: Sketch, x: Value) -> None:
    if not x.shape:
        return
    axis = s.draw(st.integers(0, len(x.shape) - 1))
    others = [v for v in s.values if _but(v.shape, axis) == _but(x.shape, axis) and v.shape]
    other = s.pick(others)
    shape = list(x.shape)
    shape[axis] += other.shape[axis]
    given = s.pick([axis, axis - len(shape)])
    y = s.add("Concat", [x.name, other.name], tuple(shape), axis=given)
    if s.draw(st.booleans()):
        sizes = s.constant(np.asarray([x.shape[axis], other.shape[axis]], np.int64))
        s.add_many("Split", [y.name, sizes], [x.shape, other.shape], axis=axis)


def _but(shape: Shape, axis: int) -> tuple[Any, ...]:
    return (len(shape), shape[:axis], shape[axis + 1 :])


def slice_(s: Sketch, x: Value) -> None:
    if not x.shape:
        return
    axis = s.draw(st.integers(0, len(x.shape) - 1))
    start = s.draw(st.integers(0, x.shape[axis] - 1))
    end = s.pick([x.shape[axis], 2**31 - 1])
    numbers = [s.constant(np.asarray([n], np.int64)) for n in (start, end, axis)]
    shape = list(x.shape)
    shape[axis] -= start
    s.add("Slice", [x.name, *numbers], tuple(shape))


def pad(s: Sketch, x: Value) -> None:
    if len(x.shape) != 4:
        return
    pads = np.asarray([0, 0, *s.pick([(0, 1), (1, 1), (0, 0)])] * 2, np.int64)
    shape = tuple(int(n + 2 * p) for n, p in zip(x.shape, pads))
    y = s.add("Pad", [x.name, s.constant(pads)], shape)
    convolve(s, y)


def expand(s: Sketch, x: Value) -> None:
    target = s.pick([x.shape, (1,) * len(x.shape), (2, *x.shape)])
    shape = np.broadcast_shapes(target, x.shape)
    s.add("Expand", [x.name, s.constant(np.asarray(target, np.int64))], shape)


def cast(s: Sketch, x: Value) -> None:
    wide = s.add("Cast", [x.name], x.shape, to=s.pick([TensorProto.DOUBLE, TensorProto.FLOAT]))
    s.values.remove(wide)
    s.add("Cast", [wide.name], x.shape, to=TensorProto.FLOAT)


def reduce(s: Sketch, x: Value) -> None:
    """The mean takes its axes as an attribute, the sum as an input, in these opsets."""
    if not x.shape:
        return
    axis, keep = s.draw(st.integers(0, len(x.shape) - 1)), s.pick([0, 1])
    shape = x.shape[:axis] + (1,) * keep + x.shape[axis + 1 :]
    axes = s.constant(np.asarray([axis], np.int64))
    if s.opset >= 18:
        s.add(s.pick(["ReduceMean", "ReduceMax"]), [x.name, axes], shape, keepdims=keep)
    elif s.draw(st.booleans()):
        s.add("ReduceSum", [x.name, axes], shape, keepdims=keep)
    else:
        s.add(s.pick(["ReduceMean", "ReduceMax"]), [x.name], shape, axes=[axis], keepdims=keep)


def softmax(s: Sketch, x: Value) -> None:
    if x.shape:
        s.add("Softmax", [x.name], x.shape, axis=s.draw(st.integers(-1, len(x.shape) - 1)))


def gelu(s: Sketch, x: Value) -> None:
    root = s.constant(np.float32(1.4142135))
    y = s.add("Div", [x.name, root], x.shape)
    y = s.add("Erf", [y.name], x.shape)
    y = s.add("Add", [y.name, s.constant(np.float32(1))], x.shape)
    half = s.constant(np.float32(0.5))
    if s.draw(st.booleans()):
        y = s.add("Mul", [x.name, y.name], x.shape)
        s.add("Mul", [y.name, half], x.shape)
    else:
        z = s.add("Mul", [x.name, half], x.shape)
        s.add("Mul", [z.name, y.name], x.shape)


def swish(s: Sketch, x: Value) -> None:
    y = s.add("Sigmoid", [x.name], x.shape)
    s.add("Mul", [x.name, y.name], x.shape)


def layer_norm(s: Sketch, x: Value) -> None:
    if len(x.shape) < 2:
        return
    narrow = (*x.shape[:-1], 1)

    def mean(value: Value) -> Value:
        if s.opset >= 18:
            axes = s.constant(np.asarray([-1], np.int64))
            return s.add("ReduceMean", [value.name, axes], narrow)
        return s.add("ReduceMean", [value.name], narrow, axes=[-1])

    d = x if s.draw(st.booleans()) else s.add("Sub", [x.name, mean(x).name], x.shape)
    squares = s.add("Pow", [d.name, s.constant(np.float32(2))], x.shape)
    variance = s.add("Add", [mean(squares).name, s.constant(np.float32(1e-5))], narrow)
    root = s.add("Sqrt", [variance.name], narrow)
    y = s.add("Div", [d.name, root.name], x.shape)
    if s.draw(st.booleans()):
        y = s.add("Mul", [y.name, s.weight(x.shape[-1])], x.shape)
        s.add("Add", [y.name, s.weight(x.shape[-1])], x.shape)


def attention(s: Sketch, x: Value) -> None:
    if len(x.shape) != 4:
        return
    batch, heads, time, size = x.shape
    keys = s.add("Transpose", [x.name], (batch, heads, size, time), perm=[0, 1, 3, 2])
    y = s.add("MatMul", [x.name, keys.name], (batch, heads, time, time))
    y = s.add("Div", [y.name, s.constant(np.float32(2))], y.shape)
    if s.draw(st.booleans()):
        y = s.add("Add", [y.name, s.weight(time, time)], y.shape)
    y = s.add("Softmax", [y.name], y.shape, axis=-1)
    s.add("MatMul", [y.name, x.name], x.shape)


def branch(s: Sketch, x: Value) -> None:
    """An If whose branches read x from outside and have constants."""
    condition = s.constant(np.asarray(s.draw(st.booleans())))
    if s.draw(st.booleans()) and condition not in s.overridable:
        s.overridable.append(condition)
    bodies = {}
    for name, operator in (("then_branch", "Mul"), ("else_branch", "Add")):
        inner, out = s.fresh(), s.fresh()
        constant = numpy_helper.from_array(random((), 7), inner)
        nodes = [
            helper.make_node("Constant", [], [inner], value=constant),
            helper.make_node(operator, [x.name, inner], [out]),
        ]
        info = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        bodies[name] = helper.make_graph(nodes, name, [], [info])
    s.add("If", [condition], x.shape, **bodies)


STEPS = [
    *(unary, binary, binary, divide, matmul, convolve, convolve, pool, transpose, transpose),
    *(reshape, reshape_by_shape, squeeze, concat, slice_, pad, expand, cast, reduce, softmax),
    *(gelu, swish, layer_norm, attention, branch),
]


@st.composite
def models(draw: Callable[[st.SearchStrategy[Any]], Any], longest: int = 8) -> Drawn:
    """A model of up to `longest` steps, and feeds."""
    s = Sketch(draw, draw(st.sampled_from(OPSETS)))
    shapes: list[Shape] = draw(
        st.lists(
            st.sampled_from([(2, 3), (1, 4, 3), (1, 2, 4, 4), (2, 2, 3, 4)]), min_size=1, max_size=2
        )
    )
    feeds = {f"x{i}": random(shape, 10 + i) for i, shape in enumerate(shapes)}
    s.values = [Value(name, array.shape) for name, array in feeds.items()]
    for _ in range(draw(st.integers(1, longest))):
        step, x = s.pick(STEPS), s.value()
        if x is not None:
            step(s, x)
    made = [v for v in s.values if v.name not in feeds]
    if not made:
        made = [s.add("Relu", [s.values[0].name], s.values[0].shape)]
    also = draw(st.lists(st.sampled_from(made), max_size=2))
    outputs = list(dict.fromkeys([made[-1], *also]))
    if s.initializers and draw(st.booleans()):
        s.overridable.append(s.pick(sorted(s.initializers)))
    return Drawn(_model(s, feeds, outputs), feeds)


def _model(s: Sketch, feeds: dict[str, Array], outputs: list[Value]) -> onnx.ModelProto:
    symbolic = s.draw(st.booleans())
    infos = [
        helper.make_tensor_value_info(
            name,
            TensorProto.FLOAT,
            [f"{name}_{axis}" for axis in range(array.ndim)] if symbolic else list(array.shape),
        )
        for name, array in feeds.items()
    ]
    for name in dict.fromkeys(s.overridable):
        array = s.initializers[name]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(helper.make_tensor_value_info(name, kind, list(array.shape)))
    results = [
        helper.make_tensor_value_info(v.name, TensorProto.FLOAT, [None] * len(v.shape))
        for v in outputs
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in s.initializers.items()]
    graph = helper.make_graph(s.nodes, "random", infos, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", s.opset)])
    model.ir_version = 8
    return model
