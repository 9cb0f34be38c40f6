"""Pipeline: from raw input to a final result: preprocess, run the model, postprocess.

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

_NUMPY = {"float": "float32", "double": "float64"}  # onnxruntime's names that numpy does not have


class Pipeline:
    """A session with its pre- and postprocessing.

    `preprocess` and `postprocess` are functions of one argument, or models themselves (a path,
    bytes, a session). A function takes the result of the stage before it: the caller's input, or a
    model's outputs by name. A model's outputs keep their names.

    The feeds of a model: a mapping by name, a tuple in the order of the inputs, anything else is
    the only input; numbers become arrays of the declared type. The final result is one output
    itself, or a dict of several.
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
        """The result for one input."""
        for stage in self._stages:
            given = _run(stage, given) if isinstance(stage, InferenceSession) else stage(given)
        if isinstance(given, dict) and len(given) == 1:
            (given,) = given.values()
        return given


def _run(session: InferenceSession, given: Any) -> dict[str, Any]:
    names = [arg.name for arg in session.get_outputs()]
    return dict(zip(names, session.run(None, prepare(session.get_inputs(), given)), strict=True))


def prepare(inputs: Sequence[Any], given: Any) -> dict[str, Any]:
    """Feeds for a session's inputs: by name, by order, or the only one."""
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
