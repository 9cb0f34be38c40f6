"""Pipeline: raw input to finished answer. Prepare, preprocess, run, postprocess, give.

classify = Pipeline("classifier.onnx", preprocess=scale, postprocess=best_label)
classify(image)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import FeedError
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

_NUMPY = {"float": "float32", "double": "float64"}  # onnxruntime's words that numpy has not


class Pipeline:
    """A session with what comes before and after it.

    `preprocess` and `postprocess` are functions of one argument, or models themselves (a path,
    bytes, a session). A function takes what came before it and returns what goes on: the caller's
    input, or the results by name. A model's outputs go on under their names.

    What reaches a model is prepared: a mapping of names stays, a tuple goes by the order of the
    inputs, anything else is the one input; numbers become arrays of the declared type. At the end
    one output comes bare, several come as a dict.
    """

    def __init__(
        self,
        model: Source | InferenceSession,
        *,
        preprocess: Callable[[Any], Any] | Source | InferenceSession | None = None,
        postprocess: Callable[[Any], Any] | Source | InferenceSession | None = None,
        sess_options: Any = None,
        providers: Any = None,
    ) -> None:
        def stage(given: Any) -> Any:
            if isinstance(given, InferenceSession) or callable(given):
                return given
            return InferenceSession(given, sess_options, providers)

        parts = [part for part in (preprocess, model, postprocess) if part is not None]
        self._stages = [stage(part) for part in parts]

    def __call__(self, given: Any) -> Any:
        """The answer to one input."""
        for stage in self._stages:
            given = _run(stage, given) if isinstance(stage, InferenceSession) else stage(given)
        if isinstance(given, dict) and len(given) == 1:
            (given,) = given.values()
        return given


def _run(session: InferenceSession, given: Any) -> dict[str, Any]:
    names = [arg.name for arg in session.get_outputs()]
    return dict(zip(names, session.run(None, prepare(session.get_inputs(), given)), strict=True))


def prepare(inputs: Sequence[Any], given: Any) -> dict[str, Any]:
    """Feeds for a session's inputs from what was given: by name, by order, or the only one."""
    known = {arg.name: arg for arg in inputs}
    if not isinstance(given, Mapping):
        values: Sequence[Any] = given if isinstance(given, tuple) else (given,)
        if len(values) != len(known):
            names = ", ".join(map(repr, known))
            raise FeedError(f"{len(values)} inputs were given, the model takes {names}")
        given = dict(zip(known, values, strict=True))
    return {name: _array(value, known.get(name)) for name, value in given.items()}


def _array(value: Any, arg: Any) -> Any:
    """Numbers and lists of numbers as an array of the declared type; tensors as they are."""
    if arg is None or hasattr(value, "__dlpack__") or not arg.type.startswith("tensor("):
        return value
    word = arg.type.removeprefix("tensor(").removesuffix(")")
    return np.asarray(value, None if word == "string" else _NUMPY.get(word, word))
