"""Check gradients against central differences, in users' tests.

check_gradient(model)                     # every float input and initializer
check_gradient(model, feeds, wrt=["w"])   # on given feeds
check_gradient(model, double=True)        # against a float64 copy of the model
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.gradients.model import gradient, lift_weights
from onward.gradients.rule import GradientTable
from onward.gradients.table import GRADIENTS
from onward.graph.dtypes import FLOATS
from onward.graph.files import Source, load
from onward.graph.random_feeds import random_feeds
from onward.graph.scopes import graphs_of
from onward.passes.pipelines import PREPARE
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
Feeds = dict[str, Any]

# step of a central difference, and the tolerance of the derivative, relative to its size
_STEPS = {"float64": 1e-5, "float32": 1e-2, "float16": 5e-2, "bfloat16": 1e-1}
_TOLERANCES = {"float64": 1e-6, "float32": 2e-2, "float16": 1e-1, "bfloat16": 3e-1}
_DOUBLE_PROVIDERS = ["TorchExecutionProvider", "ReferenceExecutionProvider"]
_TYPE_ATTRIBUTES = {"to", "dtype", "stash_type", "softmax_precision", "output_dtype"}
_NEGLIGIBLE = 1e-4
_MOST_ELEMENTS = 256  # that are tried one by one to find the worst


class GradientWrong(AssertionError):
    """A gradient and the central difference do not agree."""


def check_gradient(
    model: Source,
    feeds: Mapping[str, Any] | None = None,
    *,
    outputs: Sequence[str] | None = None,
    wrt: Sequence[str] | None = None,
    rules: GradientTable = GRADIENTS,
    providers: Asked = None,
    options: SessionOptions | None = None,
    directions: int = 4,
    step: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    double: bool = False,
) -> dict[str, Array]:
    """Compare gradients with central differences along random directions; return the gradients.

    L = sum of y * dy over the outputs, dy random; for random d, (L(x + h d) - L(x - h d)) / 2h
    must be <dL/dx, d>. Half of d is the gradient's own direction: in a large tensor, a random
    direction is almost orthogonal to it. A disagreement raises GradientWrong, which names the input
    and its worst element. The model computes in its own types: float64 is the most exact.

    With `double`, that is done with a float64 copy of the model, on torch; the model's own
    gradients, in its own types and on the given providers, must then equal those of the copy.
    """
    loss = _Loss(load(model, any_domain=True), feeds, outputs, wrt, providers, options, seed)
    found = loss.gradients(rules)
    if double:
        wide = {n: _wide(x) if _is_float(x) else x for n, x in loss.feeds.items()}
        exact = check_gradient(
            to_double(loss.model),
            wide,
            outputs=loss.outputs,
            wrt=loss.wrt,
            rules=rules,
            providers=_DOUBLE_PROVIDERS,
            options=options,
            directions=directions,
            step=step,
            tolerance=tolerance,
            seed=seed,
        )
        _compare(found, exact)
        return found
    rng = np.random.default_rng(seed)
    for name in loss.wrt:
        x = loss.feeds[name]
        h = step or _STEPS[x.dtype.name]
        allowed = tolerance or _TOLERANCES[x.dtype.name]
        if found[name].shape != x.shape:
            raise GradientWrong(
                f"gradient of {name!r} has shape {found[name].shape}, not {x.shape}"
            )
        for _ in range(directions if x.size else 0):
            d = _direction(rng, _wide(found[name]))
            expected, rounding = loss.difference(name, d, h)
            given = float(np.sum(_wide(found[name]) * d))
            if not abs(given - expected) <= rounding + allowed * (
                abs(expected) + _norm(found[name])
            ):
                raise GradientWrong(_worst(loss, name, found[name], h, given, expected))
    return found


def _direction(rng: np.random.Generator, g: Array) -> Array:
    """A vector of length 1, half random and half along g."""
    d: Array = np.asarray(rng.normal(size=g.shape))
    d = d / np.linalg.norm(d)
    length = _norm(g)
    if length > 0 and np.isfinite(length):
        both = d + g / length
        d = both if np.linalg.norm(both) > 0.1 else d
    return np.asarray(d / np.linalg.norm(d))


class _Loss:
    """L(feeds) = sum of y * dy; initializers that are differentiated are feeds, too."""

    def __init__(
        self,
        model: ir.Model,
        feeds: Mapping[str, Any] | None,
        outputs: Sequence[str] | None,
        wrt: Sequence[str] | None,
        providers: Asked,
        options: SessionOptions | None,
        seed: int,
    ) -> None:
        self.model, self._providers, self._options = model.clone(), providers, options
        lift_weights(self.model, wrt or ())
        graph = self.model.graph
        floats = [str(y.name) for y in graph.outputs if y.dtype in FLOATS]
        self.outputs = list(outputs or floats)
        if not self.outputs:
            raise OptionError("the model has no float output to differentiate")
        given = [v for v in (*graph.inputs, *graph.initializers.values()) if v.dtype in FLOATS]
        self.wrt = list(wrt or dict.fromkeys(str(value.name) for value in given))
        self._session = _forward(self.model, self.wrt, providers, options)
        self.feeds: Feeds = dict(feeds or random_feeds(self._session.get_inputs(), seed=seed))
        for name in self.wrt:
            if name in graph.initializers:
                tensor = graph.initializers[name].const_value
                assert tensor is not None
                self.feeds.setdefault(name, tensor.numpy())
        rng = np.random.default_rng(seed + 1)
        results = self._session.run(self.outputs, self.feeds)
        self._cotangents = {
            name: rng.normal(size=y.shape).astype(y.dtype) for name, y in zip(self.outputs, results)
        }

    def gradients(self, rules: GradientTable) -> dict[str, Array]:
        """dL/dx by the gradient rules."""
        names = {name: f"{name}_cotangent" for name in self.outputs}
        extended = gradient(self.model, names, self.wrt, rules=rules)
        session = _forward(extended, self.wrt, self._providers, self._options)
        feeds = {**self.feeds, **{names[n]: dy for n, dy in self._cotangents.items()}}
        added = [str(y.name) for y in extended.graph.outputs][-len(self.wrt) :]
        return dict(zip(self.wrt, session.run(added, feeds)))

    def difference(self, name: str, d: Array, h: float) -> tuple[float, float]:
        """The derivative along d, and its rounding error, from the size of L's terms."""
        x = self.feeds[name]
        ahead, behind = ((_wide(x) + s * h * d).astype(x.dtype) for s in (1, -1))
        (up, size), (down, _) = self._at(name, ahead), self._at(name, behind)
        moved = float(np.sum((_wide(ahead) - _wide(behind)) * d))  # rounding moved the points
        return (up - down) / moved if moved else 0.0, np.finfo(_numpy_like(x)).eps * size / h

    def _at(self, name: str, x: Array) -> tuple[float, float]:
        results = self._session.run(self.outputs, {**self.feeds, name: x})
        terms = [_wide(y) * _wide(self._cotangents[n]) for n, y in zip(self.outputs, results)]
        return float(sum(t.sum() for t in terms)), float(sum(np.abs(t).sum() for t in terms))


def _compare(found: Mapping[str, Array], exact: Mapping[str, Array]) -> None:
    """Compare gradients of a narrow type with exact ones, each relative to its length.

    A gradient that is negligible compared with the longest is rounding of an exact 0.
    """
    longest = max((_norm(dx) for dx in exact.values()), default=0.0)
    for name, dx in exact.items():
        allowed = _TOLERANCES[found[name].dtype.name] * max(_norm(dx), _NEGLIGIBLE * longest)
        off = _norm(_wide(found[name]) - dx)
        if not off <= allowed:
            raise GradientWrong(
                f"gradient of {name!r}: in {found[name].dtype} it is off by {off:.3g} "
                f"from that of a float64 copy, which is {_norm(dx):.3g} long"
            )


def to_double(model: ir.Model) -> ir.Model:
    """A copy of a model that computes in float64; for providers that do not check schemas."""
    copy = PREPARE(model.clone())
    for graph in graphs_of(copy):
        made = [value for node in graph for value in node.outputs]
        for value in (*graph.inputs, *graph.initializers.values(), *made):
            value.type = _doubled(value.type)
            if value.const_value is not None and value.const_value.dtype in FLOATS:
                value.const_value = ir.tensor(_wide(value.const_value.numpy()), name=value.name)
        for node in graph:
            for name, held in list(node.attributes.items()):
                if held.type is ir.AttributeType.TENSOR and held.as_tensor().dtype in FLOATS:
                    tensor = ir.tensor(_wide(held.as_tensor().numpy()))
                    node.attributes[name] = ir.AttrTensor(name, tensor)
                elif name in _TYPE_ATTRIBUTES and held.value in FLOATS:
                    node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
    return copy


def _doubled(kind: Any) -> Any:
    """A type with float64 for its floats; types are shared with the original: never in place."""
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_doubled(kind.elem_type))
    return ir.TensorType(ir.DataType.DOUBLE) if kind is not None and kind.dtype in FLOATS else kind


def _forward(
    model: ir.Model, wrt: Sequence[str], providers: Asked, options: SessionOptions | None
) -> InferenceSession:
    """A session that takes the initializers among `wrt` as feeds."""
    model = model.clone()
    graph = model.graph
    for name in wrt:
        value = graph.initializers.pop(name, None)
        if value is not None:
            value.const_value = None
            if not value.is_graph_input():
                graph.inputs.append(value)
    return InferenceSession(model, options, providers)


def _worst(loss: _Loss, name: str, found: Array, h: float, given: float, expected: float) -> str:
    """The message, with the element of the largest error among those that were tried."""
    places = list(np.ndindex(found.shape))
    if len(places) > _MOST_ELEMENTS:
        chosen = np.random.default_rng(0).choice(len(places), _MOST_ELEMENTS, replace=False)
        places = [places[i] for i in chosen]
    worst, right = max(
        ((place, _element(loss, name, found, place, h)) for place in places),
        key=lambda pair: abs(float(found[pair[0]]) - pair[1]),
    )
    return (
        f"gradient of {name!r}: along a random direction it says {given:.6g}, "
        f"central differences say {expected:.6g}\n"
        f"worst element: {name}{list(map(int, worst))} is {float(found[worst]):.6g}, "
        f"should be {right:.6g}"
    )


def _element(loss: _Loss, name: str, found: Array, place: tuple[int, ...], h: float) -> float:
    d = np.zeros(found.shape)
    d[place] = 1.0
    return loss.difference(name, d, h)[0]


def _wide(x: Any) -> Array:
    return np.asarray(x, np.float64)


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and ir.DataType.from_numpy(x.dtype) in FLOATS


def _norm(x: Any) -> float:
    return float(np.linalg.norm(_wide(x)))


def _numpy_like(x: Array) -> Any:
    return x.dtype if x.dtype.name in ("float16", "float32", "float64") else np.float16
