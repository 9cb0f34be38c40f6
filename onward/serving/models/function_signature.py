"""Read a Python function's inputs and outputs from its annotations, or from a trial call.

def double(x: NDArray[np.float32]) -> dict[str, Array]: ...
def scale(x: Annotated[Array, (-1, 4)], by: float = 2.0): ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from onward.errors import OptionError
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES, datatype_of

_SCALARS = {float: "FP32", int: "INT64", bool: "BOOL", str: "BYTES", bytes: "BYTES"}


def input_specs(function: Callable[..., Any]) -> list[TensorSpec]:
    """The inputs that a function's parameters declare; plain arrays are FP32 of any shape."""
    hints = _hints(function)
    specs = []
    for parameter in _free_parameters(function):
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise _undeclared(function, f"parameter {parameter.name!r} cannot be given by name")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _undeclared(function, f"*{parameter.name} has no fixed names")
        hint = hints.get(parameter.name, np.ndarray)
        spec = spec_of(parameter.name, hint, parameter.default is not parameter.empty)
        if spec is None:
            raise _undeclared(function, f"parameter {parameter.name!r} is not declared as an array")
        specs.append(spec)
    return specs


def dictionary_parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    """The function's only parameter, if it is a dictionary of arrays."""
    parameters = _free_parameters(function)
    if len(parameters) != 1:
        return None
    hint = _hints(function).get(parameters[0].name)
    kind = get_origin(hint) or hint
    is_dictionary = isinstance(kind, type) and issubclass(kind, (dict, Mapping))
    return parameters[0] if is_dictionary else None


def spec_of(name: str, hint: Any, is_optional: bool = False) -> TensorSpec | None:
    """The tensor that an annotation declares; None if it declares none."""
    hint = _expanded(hint)
    if hint in _SCALARS:
        return TensorSpec(name, _SCALARS[hint], (), (), is_optional, hint is bytes)
    shape: tuple[int, ...] = ()  # of any rank
    datatype = "FP32"
    if get_origin(hint) is Annotated:
        declared, *notes = get_args(hint)
        hint = _expanded(declared)
        for note in notes:
            if isinstance(note, TensorSpec):
                return note
            if isinstance(note, str) and note in DATATYPES:
                datatype = note
            elif isinstance(note, (tuple, list)):
                shape = tuple(note)
    if get_origin(hint) is np.ndarray:
        of = [each for part in get_args(hint)[1:] for each in get_args(part)]
        if of and isinstance(of[0], type) and issubclass(of[0], np.generic):
            datatype = datatype_of(np.dtype(of[0]))
    elif hint not in (np.ndarray, Any):
        return None
    return TensorSpec(name, datatype, shape, (), is_optional)


def _expanded(hint: Any) -> Any:
    """What an alias of a `type` statement stands for: numpy 2.5's NDArray is one."""
    alias = get_origin(hint) or hint
    if not hasattr(alias, "__value__"):
        return hint
    arguments = get_args(hint)
    return _expanded(alias.__value__[arguments] if arguments else alias.__value__)


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function; of a functools.partial, that of its function."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine: of a function, or of an object that is called."""
    if isinstance(function, functools.partial):
        return is_coroutine_function(function.func)
    called = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def scalar_names(function: Callable[..., Any]) -> set[str]:
    """The parameters that are Python numbers or texts, not arrays."""
    return {name for name, hint in _hints(function).items() if hint in _SCALARS}


def sample_feeds(specs: Sequence[TensorSpec], scalars: set[str], size: int) -> dict[str, Array]:
    """Zeros, or empty texts, of the declared shapes, with `size` for each dynamic dimension."""
    feeds: dict[str, Array] = {}
    for spec in specs:
        declared = spec.shape or (() if spec.name in scalars else (-1, 1))
        shape = tuple(size if n < 0 else n for n in declared)
        if spec.datatype == "BYTES":
            feeds[spec.name] = np.full(shape, b"" if spec.is_binary else "", object)
        else:
            feeds[spec.name] = np.zeros(shape, DATATYPES[spec.datatype])
    return feeds


def output_specs(
    small: Mapping[str, Array], large: Mapping[str, Array], has_rank: bool
) -> list[TensorSpec]:
    """The outputs that two trial calls with different sizes gave: sizes that differ are dynamic.

    Without `has_rank`, inputs may have any rank, and so may outputs.
    """
    specs = []
    for name, array in small.items():
        other = large[name]
        if other.ndim != array.ndim:
            raise OptionError(
                f"output {name!r} has {array.ndim} axes or {other.ndim}, by the input's size\n"
                "return arrays of one rank"
            )
        shape = tuple(a if a == b else -1 for a, b in zip(array.shape, other.shape))
        is_binary = array.dtype == object and any(isinstance(v, bytes) for v in array.flat)
        datatype = datatype_of(array.dtype)
        specs.append(TensorSpec(name, datatype, shape if has_rank else (), is_binary=is_binary))
    return specs


def _free_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters without those that functools.partial has bound by name."""
    bound: set[str] = set()
    inner = function
    while isinstance(inner, functools.partial):
        bound |= inner.keywords.keys()
        inner = inner.func
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.name not in bound]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(function, functools.partial):
        return _hints(function.func)
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError):  # annotations of names that exist only for type checkers
        return {}


def _undeclared(function: Callable[..., Any], why: str) -> OptionError:
    return OptionError(
        f"the inputs of function {function_name(function)!r} are not known: {why}\n"
        "annotate its parameters, such as x: NDArray[np.float32], or give inputs=[TensorSpec(...)]"
    )
