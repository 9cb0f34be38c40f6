"""Serve a Python function of arrays: an Instance whose engine is the function.

FunctionInstance(lambda x: {"y": 2 * x}, inputs=[TensorSpec("x", "FP32", (-1, 4))])
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import FeedError, NodeFailed, OnwardError, OptionError, SessionClosed
from onward.serving.models.function_signature import (
    dictionary_parameter,
    function_name,
    input_specs,
    is_coroutine_function,
    output_specs,
    sample_feeds,
    scalar_names,
)
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES

_LOG = logging.getLogger("onward.serving")
_DTYPES = frozenset(DATATYPES.values())


class FunctionInstance:
    """A function that is called with a batch. It takes arrays by name, or one dict of them.

    It returns an array, a tuple of arrays (output_0, output_1, ...), or a dict by name. Inputs are
    those of its annotations unless they are given; outputs those of a trial call with zeros.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[TensorSpec] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
    ) -> None:
        if not callable(function):
            raise OptionError(f"{function!r} is not a function, and cannot be served")
        if is_coroutine_function(function):
            raise OptionError(
                f"{function_name(function)} is a coroutine, and batches run in threads\n"
                "give a function without async"
            )
        self.function, self._is_closed = function, False
        self._dictionary = None if inputs is None else dictionary_parameter(function)
        self.name = function_name(function)
        self.inputs = list(inputs) if inputs is not None else input_specs(function)
        self._scalars = scalar_names(function)
        self.outputs: list[TensorSpec] = list(outputs) if outputs is not None else []
        if outputs is None:
            self.outputs = self._try_outputs()

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or all."""
        found = self._call(feeds)
        if outputs is None:
            return found
        missing = [name for name in outputs if name not in found]
        if missing:
            raise NodeFailed(f"function {self.name!r} did not return {missing[0]!r}", self.name)
        return {name: found[name] for name in outputs}

    def close(self) -> None:
        """Refuse further runs; one that has started ends."""
        self._is_closed = True

    def _call(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._is_closed:
            raise SessionClosed(f"function {self.name!r} is no longer served")
        given = {
            name: _scalar(a) if name in self._scalars else _writable(a) for name, a in feeds.items()
        }
        try:
            result = self._pass_feeds(given)
        except OnwardError:
            raise
        except Exception as error:
            _LOG.debug("function %r failed", self.name, exc_info=True)
            text = f"function {self.name!r} failed: {type(error).__name__}: {error}"
            raise NodeFailed(text, self.name) from error
        return self._named(result)

    def _pass_feeds(self, given: dict[str, Any]) -> Any:
        if self._dictionary is None:
            return self.function(**given)
        if self._dictionary.kind is self._dictionary.KEYWORD_ONLY:
            return self.function(**{self._dictionary.name: given})
        return self.function(given)

    def _named(self, result: Any) -> dict[str, Array]:
        """What the function returned, by the names of its outputs."""
        types = {spec.name: spec.datatype for spec in self.outputs}
        if isinstance(result, Mapping):
            named = {str(name): self._array(value) for name, value in result.items()}
        else:
            values = list(result) if isinstance(result, tuple) else [result]
            names = [spec.name for spec in self.outputs] or _default_names(len(values))
            if len(names) != len(values):
                text = f"function {self.name!r} returned {len(values)} outputs"
                raise NodeFailed(f"{text}, expected {len(names)}", self.name)
            named = dict(zip(names, map(self._array, values)))
        return {name: self._cast(name, each, types.get(name, "")) for name, each in named.items()}

    def _cast(self, output: str, array: Array, datatype: str) -> Array:
        """Python floats are float64: as the declared type, if there is one."""
        if not datatype or datatype == "BYTES" or array.dtype == DATATYPES[datatype]:
            return array
        with np.errstate(over="ignore", invalid="ignore"):
            found = array.astype(DATATYPES[datatype])
        if found.dtype.kind in "iu" and array.dtype.kind in "iuf":
            exact = np.trunc(array) if array.dtype.kind == "f" else array
            wrong = array[exact != found]  # numpy wraps them
            if wrong.size:
                text = f"function {self.name!r} returned {wrong[0]} for output {output!r}"
                raise NodeFailed(f"{text}: out of the range of {datatype}", self.name)
        return found

    def _array(self, value: Any) -> Array:
        """A value that the function returned, as a tensor of the protocol.

        A copy: the function may return a buffer of its own, and fill it again before the answer
        is sent.
        """
        try:
            array = np.array(value)
        except ValueError as error:  # lists of different lengths
            text = f"function {self.name!r} returned what is no array: {error}"
            raise NodeFailed(text, self.name) from None
        if array.dtype.kind in "US":
            return array.astype(object)
        if not array.dtype.isnative:
            return array.astype(array.dtype.newbyteorder("="))
        if array.dtype.kind == "O":
            kinds = {type(x).__name__ for x in array.flat if not isinstance(x, (str, bytes))}
        else:
            kinds = set() if array.dtype in _DTYPES else {str(array.dtype)}
        if kinds:
            text = f"function {self.name!r} returned {', '.join(sorted(kinds))}"
            raise NodeFailed(f"{text}: neither numbers, booleans nor text", self.name)
        return array

    def _try_outputs(self) -> list[TensorSpec]:
        """The outputs of trial calls with 1 and 2 rows of zeros."""
        try:
            small, large = (
                self._call(sample_feeds(self.inputs, self._scalars, size)) for size in (1, 2)
            )
        except (NodeFailed, FeedError) as error:
            raise OptionError(
                f"the outputs of function {self.name!r} are not known: a trial call with zeros "
                f"failed: {error}\n"
                "declare its outputs, or the shapes of its inputs, as TensorSpec"
            ) from error
        arrays = [spec for spec in self.inputs if spec.name not in self._scalars]
        return output_specs(small, large, all(spec.shape for spec in arrays))


def _default_names(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{place}" for place in range(count)]


def _scalar(array: Array) -> Any:
    return array.item() if array.size == 1 else array


def _writable(array: Array) -> Array:
    """An array that a function may change in place: those of requests may be read-only."""
    return array if array.flags.writeable else array.copy()
