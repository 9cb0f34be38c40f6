"""How each value depends on the batch: learned by running the model with 2 and with 3 rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Feeds
from onward.errors import OnwardError, UnsupportedModel
from onward.graph.random_feeds import random_feeds
from onward.graph.scopes import bodies
from onward.message_text import first_line
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

INDEPENDENT = -1  # in place of an axis: the value is the same for every batch
PROBE_ROWS = 5
_SIZES = (16, 64, 224, 1)  # tried for dynamic dimensions other than the batch


def open_session(model: ir.Model) -> InferenceSession:
    """A session on onnxruntime that prints nothing."""
    return InferenceSession(model, SessionOptions(log_severity_level=4), ["CPUExecutionProvider"])


def select_rows(feeds: Mapping[str, Any], axes: Mapping[str, int], rows: Any) -> Feeds:
    """Feeds of these rows; inputs without a batch axis stay."""
    return {
        name: np.take(feed, rows, axis=axes[name]) if name in axes else feed
        for name, feed in feeds.items()
    }


def count_rows(feeds: Mapping[str, Any], axes: Mapping[str, int]) -> int:
    """The rows of a batch."""
    return next(int(np.shape(feeds[name])[axis]) for name, axis in axes.items() if name in feeds)


def probe_feeds(model: ir.Model, axes: Mapping[str, int], feeds: Feeds | None, seed: int) -> Feeds:
    """Feeds of PROBE_ROWS rows to try the model with: rows of the data, or random."""
    if feeds is not None:
        rows = count_rows(feeds, axes)
        return select_rows(feeds, axes, np.arange(PROBE_ROWS) % rows)
    session = open_session(model)
    inputs = session.get_inputs()
    failure: Exception | None = None
    for size in _SIZES:
        sizes = {
            f"{arg.name}:{place}": PROBE_ROWS if axes.get(arg.name) == place else size
            for arg in inputs
            for place, known in enumerate(arg.shape)
            if not isinstance(known, int)
        }
        made = random_feeds(inputs, sizes, seed)
        try:
            session.run(None, made)
        except OnwardError as error:
            failure = failure or error
        else:
            return made
    assert failure is not None
    raise UnsupportedModel(
        f"the model does not run on random feeds: {first_line(failure)}\ngive data="
    )


class BatchFacts:
    """The batch axis of values of a model, by their names; INDEPENDENT; None: neither."""

    def __init__(
        self, model: ir.Model, names: Iterable[str], feeds: Feeds, axes: Mapping[str, int]
    ) -> None:
        self.axes = dict(axes)
        probed = model.clone()
        values = {str(v.name): v for node in probed.graph for v in node.outputs if v.name}
        wanted = [name for name in dict.fromkeys(names) if name in values]
        probed.graph.outputs[:] = [values[name] for name in wanted]
        self._axis: dict[str, int | None] = {
            str(value.name): axes.get(str(value.name), INDEPENDENT) for value in model.graph.inputs
        }
        if not wanted:
            return
        session = open_session(probed)
        two = session.run(wanted, select_rows(feeds, axes, np.array([0, 1])))
        three = session.run(wanted, select_rows(feeds, axes, np.array([2, 3, 4])))
        self._axis |= {n: _axis_of(a, b) for n, a, b in zip(wanted, two, three, strict=True)}

    def axis(self, value: ir.Value) -> int | None:
        """The batch axis of a value; INDEPENDENT; None where there is none, or it is not known."""
        if value.is_initializer():
            return INDEPENDENT
        return self._axis.get(str(value.name))


def _axis_of(two: Any, three: Any) -> int | None:
    if not isinstance(two, np.ndarray) or two.ndim != np.ndim(three):
        return None
    if two.shape == three.shape:
        return INDEPENDENT if np.array_equal(two, three, equal_nan=two.dtype.kind == "f") else None
    changed = [i for i, (a, b) in enumerate(zip(two.shape, three.shape)) if a != b]
    if len(changed) != 1 or two.shape[changed[0]] != 2 or three.shape[changed[0]] != 3:
        return None
    return changed[0]


def shape_derived(nodes: Sequence[ir.Node]) -> set[ir.Value]:
    """Values that are computed only from the shapes of others."""
    found: set[ir.Value] = set()
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        read = [value for value in inputs if not value.is_initializer()]
        from_shapes = bool(read) and all(value in found for value in read)
        is_shape = not node.domain and node.op_type == "Shape"
        if (is_shape or from_shapes) and not bodies(node) and "Random" not in node.op_type:
            found.update(node.outputs)
    return found
