"""The inputs and outputs of a model as planning reads them: names, types, sizes, tails."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.graph.dtypes import FLOATS
from onward.graph.shapes.infer import infer_shapes
from onward.message_text import format_sizes, suggest_names
from onward.passes.linear_models import write_linear_models
from onward.passes.value_facts import made_by
from onward.passes.zip_maps import unzipped
from onward.runner.plan.score_ending import SHARES, are_shares, scores_before_probabilities

_VIEWS = ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Expand")


@dataclass(frozen=True)
class TensorPort:
    """An input or an output of a model; a size that is a name or unknown is None."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[int | None, ...]

    @property
    def rest(self) -> tuple[int | None, ...]:
        """The sizes of one row."""
        return self.shape[1:]

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def is_text(self) -> bool:
        return self.dtype == "object"  # numpy's type of strings

    def __str__(self) -> str:
        return f"{self.dtype} ({format_sizes(self.shape)})"


@dataclass(frozen=True)
class ScoresPort:
    """The output that a loss compares: its scores, which a Softmax or Sigmoid may follow."""

    output: TensorPort  # the model's own
    scores: TensorPort  # what the loss reads: before the Softmax or Sigmoid
    ending: str = ""  # "Softmax", "Sigmoid", "Sigmoid and Concat", "shares", or nothing


@dataclass(frozen=True)
class ModelPorts:
    """The inputs that need feeds, and the outputs that can be trained."""

    inputs: tuple[TensorPort, ...]
    endings: tuple[ScoresPort, ...]  # of the outputs of floats

    @property
    def scores(self) -> ScoresPort:
        """The output that is trained: the first of floats."""
        if not self.endings:
            raise UnsupportedModel(
                "the model has no output of floats to train\nexport it with its scores as an output"
            )
        return self.endings[0]


def read_ports(model: ir.Model) -> ModelPorts:
    """The inputs and outputs of a model, with what shape inference adds to declared sizes."""
    copy = write_linear_models(model.clone())  # as the session does: a classifier shows its scores
    declared = {value: value.shape for value in copy.graph.outputs}
    for value in declared:
        value.shape = None  # inference keeps what is declared, even where it is less
    infer_shapes(copy)
    for value, shape in declared.items():
        value.shape = _merge(value.shape, shape)
    inputs = [_port(value) for value in copy.graph.inputs if not value.is_initializer()]
    outputs = [unzipped(value) for value in copy.graph.outputs]
    endings = [
        _scores(value) for value in outputs if value.dtype in FLOATS and value.shape is not None
    ]
    return ModelPorts(tuple(inputs), tuple(endings))


def choose_output(ports: ModelPorts, output: str | None, target: str | None) -> ModelPorts:
    """The ports with the output first that is trained: the given one, or the target's namesake."""
    known = [port.output.name for port in ports.endings]
    if output is not None and output not in known:
        hint = suggest_names(output, known, "its outputs of floats are")
        raise OptionError(f"output: the model has no output {output!r} that can be trained\n{hint}")
    wanted = output or target or ""

    def rank(port: ScoresPort) -> bool:
        return port.output.name.lower() != wanted.lower()

    return ModelPorts(ports.inputs, tuple(sorted(ports.endings, key=rank)))


def choose_loss_output(ports: ModelPorts) -> ModelPorts:
    """The ports with the output first that is one number: the loss that a model computes."""

    def rank(port: ScoresPort) -> bool:
        return math.prod(size or 0 for size in port.output.shape) != 1

    return ModelPorts(ports.inputs, tuple(sorted(ports.endings, key=rank)))


def text_length(model: ir.Model) -> int | None:
    """How many positions a model has that takes any length: those of its position embedding."""
    found = []
    for node in model.graph:
        if node.op_type not in ("Slice", "Gather") or node.inputs[0] is None:
            continue
        table = node.inputs[0]
        if table.const_value is None or table.shape is None or len(table.shape) != 2:
            continue
        is_index = table.dtype == ir.DataType.INT64  # a buffer of position numbers: (1, length)
        if node.op_type == "Slice" or _counts_positions(node.inputs[1]):
            found.append(int(table.shape.numpy()[1 if is_index else 0]))
    return min((size for size in found if size > 1), default=None)


def _counts_positions(indices: ir.Value | None) -> bool:
    """Whether indices are 0, 1, 2, ...: a Range, perhaps in another shape or type."""
    while indices is not None and (node := made_by(indices, *_VIEWS)) is not None:
        indices = node.inputs[0]
    return indices is not None and made_by(indices, "Range") is not None


def _scores(value: ir.Value) -> ScoresPort:
    output = _port(value)
    found = scores_before_probabilities(value)
    if found is None:
        return ScoresPort(output, output, SHARES if are_shares(value) else "")
    before, ending = found
    dtype = output.dtype if before.dtype is None else before.dtype.numpy().name
    shape = output.shape if before.shape is None else _sizes(before.shape)
    return ScoresPort(output, TensorPort(str(before.name), dtype, shape), ending)


def _port(value: ir.Value) -> TensorPort:
    if value.dtype is None or value.shape is None:
        raise UnsupportedModel(
            f"{value.name!r} has no type or shape that can be inferred\n"
            "export the model with shapes of its inputs"
        )
    return TensorPort(str(value.name), value.dtype.numpy().name, _sizes(value.shape))


def _sizes(shape: Iterable[object]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _merge(a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
    if a is None or b is None or len(a) != len(b):
        return b if b is not None else a
    return ir.Shape([m if isinstance(m, int) else n for m, n in zip(a, b)])
