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

from onward.errors import FeedError, OptionError
from onward.graph.shapes.infer import infer_shapes
from onward.graph.value_matching import ValuePair, pair_values
from onward.measure.tensor_difference import (
    Difference,
    Tolerance,
    compare_tensors,
    worst_of,
)
from onward.message_text import suggest_names
from onward.providers.choose import Asked
from onward.providers.model_sources import open_model
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession
from onward.sessions.model_description import numpy_dtype

if TYPE_CHECKING:
    from onward.graph.files import Source

_AT_ONCE = 64  # values that one run returns: all of them are in memory until they are compared


@dataclass(frozen=True)
class Compared:
    """A value of both models, the nodes that compute it, and how it differs."""

    name: str
    other: str  # its name in the second model
    node: str  # "Conv 'conv1'"; "" for inputs and initializers
    other_node: str
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """How the results of two models on the same feeds differ."""

    outputs: list[Compared]
    notes: list[str] = field(default_factory=list)  # how names and types were matched
    first: Compared | None = None  # the first value, in the first model's order, that differs
    agreed: int = 0  # values before it that agree
    values: list[Compared] = field(default_factory=list)  # every one that was compared
    samples: int = 1  # sets of feeds that both ran on

    @property
    def same(self) -> bool:
        return all(output.difference.same for output in self.outputs)


def compare_models(
    a: Source,
    b: Source,
    feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    names: Mapping[str, str] | None = None,
    tolerance: Tolerance | None = None,
    providers: Asked = None,
    every: bool = False,
) -> Comparison:
    """Run both on the same feeds and compare. `feeds` are the first model's, one set or several.

    Where outputs differ, values that both models compute are compared too, to find where it
    begins, on the first set that shows it; with `every`, all of them in any case. `names` pairs
    inputs and outputs, the first model's with the second's; the others by name, then by position.
    """
    tolerance, notes = tolerance or Tolerance(), list[str]()
    first, second = open_model(a), open_model(b)
    inputs, outputs = _match_names(first, second, names or {}, notes)
    samples = [feeds] if isinstance(feeds, Mapping) else list(feeds)
    others = [_other_feeds(sample, inputs, second, notes) for sample in samples]
    notes = list(dict.fromkeys(notes))
    found = _run(a, list(outputs), samples, providers)
    expected = _run(b, list(outputs.values()), others, providers)
    differences = [
        [compare_tensors(x, y, tolerance) for x, y in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(found, expected, strict=True)
    ]
    compared = [
        Compared(name, other, _producer(first, name), _producer(second, other), worst_of(each))
        for (name, other), *each in zip(outputs.items(), *differences, strict=True)
    ]
    comparison = Comparison(compared, notes, samples=len(samples))
    if comparison.same and not every:
        return comparison
    shown = next((n for n, row in enumerate(differences) if not all(d.same for d in row)), 0)
    pair = (samples[shown], others[shown])
    values = list(_compare_inside(first, second, inputs, pair, tolerance, providers, every))
    worst = next((value for value in values if not value.difference.same), None)
    agreed = values.index(worst) if worst is not None else len(values)
    return Comparison(compared, notes, worst, agreed, values, len(samples))


def feeds_for_other(
    a: Source, b: Source, feeds: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The first model's feeds by the second one's names and types."""
    first, second = open_model(a), open_model(b)
    inputs, _ = _match_names(first, second, names or {}, [])
    return _other_feeds(feeds, inputs, second, [])


def _match_names(
    a: ir.Model, b: ir.Model, names: Mapping[str, str], notes: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The inputs of both models, and their outputs: by `names`, by name, then by position."""
    ends = [("input", _inputs(a), _inputs(b)), ("output", _outputs(a), _outputs(b))]
    for name, other in names.items():
        if any(name in ours and other in theirs for _, ours, theirs in ends):
            continue
        for wrong, model in ((name, a), (other, b)):
            known = [*_inputs(model), *_outputs(model)]
            if wrong not in known:
                hint = suggest_names(wrong, known, "that model has")
                raise OptionError(f"no input or output {wrong!r} to pair\n{hint}")
        raise OptionError(f"{name!r} and {other!r} cannot be paired: an input and an output")
    inputs, outputs = (_pair_names(what, x, y, names, notes) for what, x, y in ends)
    return inputs, outputs


def _inputs(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.inputs if not value.is_initializer()]


def _outputs(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.outputs]


def _pair_names(
    what: str, a: Sequence[str], b: Sequence[str], given: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    """Names of the first model and those of the second: as given, equal, or by position."""
    pairs = {name: other for name, other in given.items() if name in a and other in b}
    taken = set(pairs.values())
    pairs |= {name: name for name in a if name in b and name not in pairs and name not in taken}
    left = [name for name in a if name not in pairs]
    right = [name for name in b if name not in pairs.values()]
    if len(a) == len(b) and not all(a.index(x) == b.index(y) for x, y in zip(left, right)):
        left = right = []  # the others are at different positions: nothing pairs them
    for name, other in zip(left, right) if len(left) == len(right) else ():
        pairs[name] = other
        notes.append(f"{what} {name!r} is compared with {other!r}, by its position")
    for name in (*(n for n in a if n not in pairs), *(n for n in b if n not in pairs.values())):
        if what == "input":
            raise FeedError(
                f"input {name!r} is in only one model: {', '.join(a)} against {', '.join(b)}\n"
                f"pair them: names={{{name!r}: ...}}"
            )
        notes.append(f"output {name!r} is in only one model, and not compared")
    if not pairs and (a or b):
        raise FeedError(
            f"the models have no {what} in common: {', '.join(a)} against {', '.join(b)}\n"
            "pair them: names={...}"
        )
    return {name: pairs[name] for name in a if name in pairs}


def _other_feeds(
    feeds: Mapping[str, Any], inputs: Mapping[str, str], model: ir.Model, notes: list[str]
) -> dict[str, Any]:
    """The same feeds with the second model's names and types."""
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
    source: Source,
    names: Sequence[str],
    samples: Sequence[Mapping[str, Any]],
    providers: Asked,
) -> list[list[Any]]:
    """The named outputs on each set of feeds."""
    session = InferenceSession(source, _quiet(), providers)
    return [session.run(names, feeds) for feeds in samples]


def _quiet() -> SessionOptions:
    """Options without the engine's prints: errors are raised."""
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
    ours = _open_with_outputs(a, [pair.first for pair in pairs], providers)
    theirs = _open_with_outputs(b, [pair.second for pair in pairs], providers)
    for start in range(0, len(pairs), _AT_ONCE):
        batch = pairs[start : start + _AT_ONCE]
        found = ours.run([str(pair.first.name) for pair in batch], feeds[0])
        expected = theirs.run([str(pair.second.name) for pair in batch], feeds[1])
        for pair, x, y in zip(batch, found, expected, strict=True):
            if pair.by_name and np.shape(x) != np.shape(y):
                continue  # an equal name, but another value
            difference = compare_tensors(x, y, tolerance)
            names = str(pair.first.name), str(pair.second.name)
            producers = _node(pair.first.producer()), _node(pair.second.producer())
            yield Compared(*names, *producers, difference)
            if not difference.same and not every:
                return


def _exposable(pair: ValuePair) -> bool:
    """Whether a pair can be outputs: tensors, and not of types smaller than a byte."""
    return all(
        (value.type is None or isinstance(value.type, ir.TensorType))
        and (value.dtype is None or value.dtype == ir.DataType.STRING or value.dtype.bitwidth >= 8)
        for value in (pair.first, pair.second)
    )


def _open_with_outputs(
    model: ir.Model, values: Sequence[ir.Value], providers: Asked
) -> InferenceSession:
    """A session with these values as additional outputs."""
    listed = list(model.graph.outputs)
    model.graph.outputs.extend(value for value in values if value not in listed)
    try:
        return InferenceSession(model, _quiet(), providers)
    finally:
        del model.graph.outputs[len(listed) :]


def _producer(model: ir.Model, name: str) -> str:
    (value,) = (value for value in model.graph.outputs if value.name == name)
    return _node(value.producer())


def _node(node: ir.Node | None) -> str:
    if node is None:
        return ""
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type
