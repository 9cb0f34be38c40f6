"""Output arrays of the caller: allocate them for given sizes, and run into them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from onward.errors import FeedError, OptionError, ProviderError
from onward.graph.dtypes import numpy_type, ort_type
from onward.graph.random_feeds import input_shapes
from onward.graph.signature import check_feeds
from onward.lazy import LazyModule
from onward.message_text import suggest_names
from onward.providers.ort.ort_values import to_ort

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.measure.memory import estimate
else:
    estimate = LazyModule("onward.measure.memory.estimate")

Array = np.ndarray[Any, Any]

Weights = str | os.PathLike[str] | None


class BindableSession(Protocol):
    """The methods of a session that are used here."""

    def get_inputs(self) -> Any: ...
    def get_outputs(self) -> Any: ...
    def get_overridable_initializers(self) -> Any: ...
    def get_session_options(self) -> Any: ...
    def io_binding(self) -> Any: ...
    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None: ...


def allocate(
    session: BindableSession, source: Source, weights: Weights, sizes: Mapping[str, Any]
) -> dict[str, Array]:
    """An empty array for each output, its shape from sizes or from feeds."""
    inputs = [(arg.name, arg.type, arg.shape) for arg in session.get_inputs()]
    shapes = input_shapes(inputs, sizes)
    outputs = session.get_outputs()
    known = _symbols(inputs, shapes)
    found = {arg.name: _known_shape(arg.shape, known) for arg in outputs}
    if None in found.values():
        options = session.get_session_options()
        found.update(estimate.output_shapes(source, shapes, options, weights))
    return {arg.name: np.empty(found[arg.name] or (), _dtype(arg)) for arg in outputs}


def run_into(
    session: BindableSession,
    outputs: Mapping[str, Array],
    feeds: Mapping[str, Any],
    run_options: Any,
) -> None:
    """Run with the outputs bound to these arrays."""
    optional = [arg.name for arg in session.get_overridable_initializers()]
    arrays = {name: np.asarray(feed) for name, feed in feeds.items()}
    check_feeds(arrays, session.get_inputs(), optional)
    _check_outputs(outputs, session.get_outputs())
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, to_ort(array))
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, to_ort(array))
    try:
        session.run_with_iobinding(binding, run_options)
    except (ProviderError, RuntimeError) as error:
        if "shape" not in str(error).lower() and "size" not in str(error).lower():
            raise
        given = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
        raise FeedError(
            f"the outputs {given} do not have the shapes of the results\n"
            "allocate_outputs makes arrays that do"
        ) from error


def _check_outputs(outputs: Mapping[str, Array], known: Any) -> None:
    """Refuse arrays with an unknown name, of another type, read-only or not contiguous."""
    types = {arg.name: arg.type for arg in known}
    for name, array in outputs.items():
        if name not in types:
            raise FeedError(f"no output {name!r}; {suggest_names(name, types, 'the model gives')}")
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise FeedError(f"output {name!r} takes a numpy array without gaps (C-contiguous)")
        if not array.flags.writeable:
            raise FeedError(f"output {name!r} takes an array that can be written to")
        if ort_type(array.dtype) != types[name]:
            raise FeedError(
                f"output {name!r} is {types[name]}, but was given {ort_type(array.dtype)}"
            )


def _symbols(inputs: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The size of each named dimension, from the shapes of the inputs."""
    return {
        dim: size
        for name, _, dims in inputs
        for dim, size in zip(dims, shapes.get(name, ()), strict=False)
        if isinstance(dim, str)
    }


def _known_shape(dims: Any, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    sizes: list[Any] = [symbols.get(dim) if isinstance(dim, str) else dim for dim in dims or ()]
    return None if None in sizes or not dims else tuple(sizes)


def _dtype(arg: Any) -> np.dtype[Any]:
    found = numpy_type(arg.type) if arg.type.startswith("tensor(") else None
    if found is None or found == np.object_:
        raise OptionError(f"output {arg.name!r} of type {arg.type} cannot be allocated beforehand")
    return found
