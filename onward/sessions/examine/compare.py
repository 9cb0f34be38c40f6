"""Compare two models on the same feeds: their outputs, and the first value that they disagree on.

comparison = compare_models("model.onnx", "model.int8.onnx", feeds)
comparison.same, comparison.outputs, comparison.first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.errors import FeedError
from onward.graph.pairing import Pair, pair_values
from onward.graph.shapes import infer_shapes
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.description import numpy_dtype
from onward.sessions.examine.difference import Difference, Tolerance, compare_tensors
from onward.sessions.inference import InferenceSession
from onward.sessions.planning import open_model

if TYPE_CHECKING:
    from onward.graph.files import Source

_AT_ONCE = 64  # values that one run gives back: their memory is held until they are compared


@dataclass(frozen=True)
class Compared:
    """A value of both models, the nodes that make it, and how far it is apart."""

    name: str
    other: str  # its name in the second model
    node: str  # "Conv 'conv1'"; "" for what no node makes
    other_node: str
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """What two models give for the same feeds."""

    outputs: list[Compared]
    notes: list[str] = field(default_factory=list)  # what had to be taken for the same
    first: Compared | None = None  # the first value, in the first model's order, that differs
    agreed: int = 0  # values before it that agree
    values: list[Compared] = field(default_factory=list)  # every one that was compared

    @property
    def same(self) -> bool:
        return all(output.difference.same for output in self.outputs)


def compare_models(
    a: Source,
    b: Source,
    feeds: Mapping[str, Any],
    *,
    tolerance: Tolerance | None = None,
    providers: Asked = None,
    every: bool = False,
) -> Comparison:
    """Run both on the same feeds and compare. `feeds` are the first model's.

    Where outputs differ, values that both models compute are compared too, to find where it
    begins; with `every`, all of them in any case. Inputs and outputs of other names go by place.
    """
    tolerance, notes = tolerance or Tolerance(), list[str]()
    first, second = open_model(a), open_model(b)
    inputs = _pair_names("input", _inputs(first), _inputs(second), notes)
    outputs = _pair_names("output", _outputs(first), _outputs(second), notes)
    others = _other_feeds(feeds, inputs, second, notes)
    found = _run(a, list(outputs), feeds, providers)
    expected = _run(b, list(outputs.values()), others, providers)
    pairs = zip(outputs.items(), found, expected, strict=True)
    compared = [
        Compared(
            name,
            other,
            _maker(first, name),
            _maker(second, other),
            compare_tensors(ours, theirs, tolerance),
        )
        for (name, other), ours, theirs in pairs
    ]
    comparison = Comparison(compared, notes)
    if comparison.same and not every:
        return comparison
    values = list(
        _compare_inside(first, second, inputs, (feeds, others), tolerance, providers, every)
    )
    worst = next((value for value in values if not value.difference.same), None)
    agreed = values.index(worst) if worst is not None else len(values)
    return Comparison(compared, notes, worst, agreed, values)


def feeds_for_other(a: Source, b: Source, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The first model's feeds by the second one's names and types."""
    second = open_model(b)
    inputs = _pair_names("input", _inputs(open_model(a)), _inputs(second), [])
    return _other_feeds(feeds, inputs, second, [])


def _inputs(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.inputs if not value.is_initializer()]


def _outputs(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.outputs]


def _pair_names(what: str, a: Sequence[str], b: Sequence[str], notes: list[str]) -> dict[str, str]:
    """Names of the first model and theirs in the second: the same, else those at the same place."""
    pairs = {name: name for name in a if name in b}
    left, right = ([n for n in names if n not in pairs] for names in (a, b))
    if len(a) == len(b) and not all(a.index(x) == b.index(y) for x, y in zip(left, right)):
        left = right = []  # what is left stands at other places: nothing pairs it
    for name, other in zip(left, right) if len(left) == len(right) else ():
        pairs[name] = other
        notes.append(f"{what} {name!r} is taken for {other!r}, by its place")
    for name in (*(n for n in a if n not in pairs), *(n for n in b if n not in pairs.values())):
        if what == "input":
            raise FeedError(
                f"input {name!r} is in one model alone: {', '.join(a)} against {', '.join(b)}"
            )
        notes.append(f"output {name!r} is in one model alone, and not compared")
    if not pairs and (a or b):
        raise FeedError(f"the models have no {what} in common: {a} against {b}")
    return {name: pairs[name] for name in a if name in pairs}


def _other_feeds(
    feeds: Mapping[str, Any], inputs: Mapping[str, str], model: ir.Model, notes: list[str]
) -> dict[str, Any]:
    """The same feeds for the second model: its names, and its types where they are others."""
    values = {str(value.name): value for value in model.graph.inputs}
    others = {}
    for name, feed in feeds.items():
        other = inputs.get(name, name)
        dtype = numpy_dtype(values[other]) if other in values else None
        if isinstance(feed, np.ndarray) and dtype not in (None, feed.dtype):
            notes.append(f"input {other!r} of the second model is fed as {dtype}")
            feed = feed.astype(dtype)
        others[other] = feed
    return others


def _run(
    source: Source, names: Sequence[str], feeds: Mapping[str, Any], providers: Asked
) -> list[Any]:
    return InferenceSession(source, _quiet(), providers).run(names, feeds)


def _quiet() -> SessionOptions:
    """What fails is raised: the engine need not print it too."""
    return SessionOptions(log_severity_level=4)


def _compare_inside(
    a: ir.Model,
    b: ir.Model,
    inputs: Mapping[str, str],
    feeds: tuple[Mapping[str, Any], Mapping[str, Any]],
    tolerance: Tolerance,
    providers: Asked,
    every: bool,
) -> Iterator[Compared]:
    """The values of both models, in order, up to the first that differs (or all)."""
    for model in (a, b):
        infer_shapes(model)
    pairs = [pair for pair in pair_values(a, b, inputs) if _exposable(pair)]
    ours = _exposed(a, [pair.first for pair in pairs], providers)
    theirs = _exposed(b, [pair.second for pair in pairs], providers)
    for start in range(0, len(pairs), _AT_ONCE):
        some = pairs[start : start + _AT_ONCE]
        found = ours.run([str(pair.first.name) for pair in some], feeds[0])
        expected = theirs.run([str(pair.second.name) for pair in some], feeds[1])
        for pair, x, y in zip(some, found, expected, strict=True):
            if pair.by_name and np.shape(x) != np.shape(y):
                continue  # one name for two things
            difference = compare_tensors(x, y, tolerance)
            names = str(pair.first.name), str(pair.second.name)
            makers = _node(pair.first.producer()), _node(pair.second.producer())
            yield Compared(*names, *makers, difference)
            if not difference.same and not every:
                return


def _exposable(pair: Pair) -> bool:
    """Tensors of numbers; onnxruntime neither takes nor gives what is smaller than a byte."""
    return all(
        (value.type is None or isinstance(value.type, ir.TensorType))
        and (value.dtype is None or value.dtype == ir.DataType.STRING or value.dtype.bitwidth >= 8)
        for value in (pair.first, pair.second)
    )


def _exposed(model: ir.Model, values: Sequence[ir.Value], providers: Asked) -> InferenceSession:
    """A session that gives these values too."""
    listed = list(model.graph.outputs)
    model.graph.outputs.extend(value for value in values if value not in listed)
    try:
        return InferenceSession(model, _quiet(), providers)
    finally:
        del model.graph.outputs[len(listed) :]


def _maker(model: ir.Model, name: str) -> str:
    (value,) = (value for value in model.graph.outputs if value.name == name)
    return _node(value.producer())


def _node(node: ir.Node | None) -> str:
    if node is None:
        return ""
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type
