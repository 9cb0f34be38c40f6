"""Blocks: each adds a few nodes to the open model and returns the name of the result.

A custom block subclasses Block and implements `build` with other blocks, or by changing
`self.base`, the ModelProto.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from onward.training.onnxblock import _graph_utils, model_accessor

Name = str  # of a value in the graph


class Block(ABC):
    """Adds nodes to the open model; `base` is that model while `build` runs."""

    base: Any = None  # onnx.ModelProto; a subclass need not call our constructor

    def __init__(self) -> None:
        self.base = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes on top of the values of these names; return the names of the results."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build, then check the model once the outermost block is done."""
        accessor = model_accessor.current()
        self.base = accessor.model
        accessor.depth += 1
        try:
            output = self.build(*args, **kwargs)
        finally:
            accessor.depth -= 1
        return self._finish(accessor, output)

    def _finish(self, accessor: model_accessor.ModelAccessor, output: Any) -> Any:
        if accessor.depth == 0:
            _graph_utils.check(accessor.model)
        return output

    def node(
        self,
        op_type: str,
        inputs: Sequence[Name],
        *,
        token: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> Name:
        """Add one node; the name of its output, which `token` is a part of."""
        output = _graph_utils.generate_graph_name(token or f"{op_type.lower()}_output")
        self.base.graph.node.append(
            onnx.helper.make_node(
                op_type,
                list(inputs),
                [output],
                name=_graph_utils.generate_graph_name(op_type),
                domain=domain,
                **attributes,
            )
        )
        return output

    def initializer(self, token: str, array: Any) -> Name:
        """Add a constant."""
        name = _graph_utils.generate_graph_name(token)
        self.base.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name


class _BinaryOp(Block):
    """One node of two inputs."""

    def __init__(self, op_name: str) -> None:
        super().__init__()
        self._op_name = op_name

    def build(self, input_name1: Name, input_name2: Name) -> Name:
        return self.node(self._op_name, [input_name1, input_name2])


class Add(_BinaryOp):
    """a + b"""

    def __init__(self) -> None:
        super().__init__("Add")


class Sub(_BinaryOp):
    """a - b"""

    def __init__(self) -> None:
        super().__init__("Sub")


class Mul(_BinaryOp):
    """a b"""

    def __init__(self) -> None:
        super().__init__("Mul")


class Div(_BinaryOp):
    """a / b"""

    def __init__(self) -> None:
        super().__init__("Div")


class Pow(Block):
    """x ** exponent"""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: Name) -> Name:
        exponent = self.initializer("pow_exponent", np.float32(self._exponent))
        return self.node("Pow", [pow_input_name, exponent])


class _UnaryOp(Block):
    """One node of one input."""

    def __init__(self, op_name: str, **attributes: Any) -> None:
        super().__init__()
        self._op_name = op_name
        self._attributes = attributes

    def build(self, input_name: Name) -> Name:
        return self.node(self._op_name, [input_name], **self._attributes)


class ReduceMean(_UnaryOp):
    """The mean of all elements; every axis stays, with size 1, unless keepdims is False."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceMean", keepdims=int(keepdims))


class ReduceSum(_UnaryOp):
    """The sum of all elements; every axis stays, with size 1, unless keepdims is False."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceSum", keepdims=int(keepdims))


class Sigmoid(_UnaryOp):
    """1 / (1 + exp(-x))"""

    def __init__(self) -> None:
        super().__init__("Sigmoid")


class Log(_UnaryOp):
    """log(x)"""

    def __init__(self) -> None:
        super().__init__("Log")


class Neg(_UnaryOp):
    """-x"""

    def __init__(self) -> None:
        super().__init__("Neg")


class Abs(_UnaryOp):
    """|x|"""

    def __init__(self) -> None:
        super().__init__("Abs")


class Constant(Block):
    """A number, as a float32 constant of shape (1,)."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> Name:
        return self.initializer("initializer", np.array([self._value], np.float32))


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: Name) -> Name:
        return self.node("SequenceConstruct", sequence_input_names)


class ReduceAllL2(Block):
    """sqrt(sum of the squares of all elements of all tensors), of shape (1,)"""

    def build(self, *reduce_node_input_names: Name) -> Name:
        squares = [
            self.node("ReduceSumSquare", [name], keepdims=0) for name in reduce_node_input_names
        ]
        total = self.node("Sqrt", [self.node("Sum", squares)])
        return self.node("Reshape", [total, self.initializer("shape", np.array([1]))])


class Clip(Block):
    """x, at least clip_min and at most clip_max; None leaves a side open."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._min, self._max = clip_min, clip_max

    def build(self, clip_input_name: Name) -> Name:
        bounds = [
            "" if bound is None else self.initializer(token, np.float32(bound))
            for token, bound in (("clip_min", self._min), ("clip_max", self._max))
        ]
        return self.node("Clip", [clip_input_name, *bounds])


class PassThrough(Block):
    """The same names again; the model stays as it is."""

    def build(self, *input_names: Name) -> tuple[Name, ...]:
        return input_names


class InputLike(Block):
    """A new graph input with the type and shape of another value."""

    def __init__(self, like: Name) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: Name | None = None) -> Name:
        try:
            like = _graph_utils.get_value_info(self.base, self._like)
        except LookupError:
            raise LookupError(f"Could not find input or output with name {self._like}") from None
        value = self.base.graph.input.add()
        value.CopyFrom(like)
        value.name = input_name or _graph_utils.generate_graph_name("input")
        return str(value.name)


class LabelEncoder(Block):
    """ai.onnx.ml's LabelEncoder: keys to values, anything else to the default."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        given: dict[str, Any] = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self._attributes = {name: value for name, value in given.items() if value is not None}

    def build(self, label_encoder_input_name: Name) -> Name:
        if all(imported.domain != "ai.onnx.ml" for imported in self.base.opset_import):
            self.base.opset_import.add(domain="ai.onnx.ml", version=2)
        return self.node(
            "LabelEncoder", [label_encoder_input_name], domain="ai.onnx.ml", **self._attributes
        )


class Cast(Block):
    """x in another type: one of onnx.TensorProto's."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: Name) -> Name:
        return self.node("Cast", [cast_input_name], to=self._to)


class Linear(Block):
    """alpha x W + beta b, with new weights W (in, out) and b (out,).

    They are drawn from the uniform distribution that torch.nn.Linear draws from. Ask for their
    gradients by name: `weight_name` and `bias_name`, once the block was called.
    """

    weight_name: Name | None = None
    bias_name: Name | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._in_features, self._out_features, self._bias = in_features, out_features, bias
        self._alpha, self._beta = alpha, beta

    def build(self, linear_input_name: Name) -> Name:
        self.weight_name = self._drawn("linear.weight", self._in_features, self._out_features)
        inputs = [linear_input_name, self.weight_name]
        if self._bias:
            self.bias_name = self._drawn("linear.bias", self._out_features)
            inputs.append(self.bias_name)
        return self.node("Gemm", inputs, alpha=self._alpha, beta=self._beta)

    def _drawn(self, token: str, *shape: int) -> Name:
        bound = self._in_features**-0.5
        return self.initializer(token, np.random.uniform(-bound, bound, shape).astype(np.float32))
