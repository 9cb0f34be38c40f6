"""BoundSession: a graph that reads and writes numpy arrays where they lie, run after run.

What trains binds its parameters, gradients and slots once; a run then moves no memory but its
feeds. Needs onnxruntime and numpy alone.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import FeedError, InvalidModel, OnwardError, OptionError
from onward.graph.dtypes import BY_ORT
from onward.graph.paths import check_readable
from onward.graph.scan.model_scan import scan_model
from onward.names import format_sizes, suggest_names
from onward.providers.options import SessionOptions
from onward.providers.ort import session
from onward.providers.ort.denormals import flushing

Array = np.ndarray[Any, Any]
OrtValue = onnxruntime.OrtValue
_Bare = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue  # what its wrapper holds

CPU: session.ProviderList = (("CPUExecutionProvider", {}),)
_SPINNING = "session.force_spinning_stop"


@dataclass(frozen=True)
class Argument:
    """An input or an output of a graph, as onnxruntime describes it."""

    name: str
    type: str  # "tensor(float)", "seq(tensor(float))"
    shape: tuple[int | str | None, ...]

    @functools.cached_property
    def dtype(self) -> np.dtype[Any] | None:
        """numpy's type; bfloat16 as its bits. None for what is no tensor or has no such type."""
        word = self.type.removeprefix("tensor(").removesuffix(")")
        if word == "bfloat16":
            return np.dtype(np.uint16)
        found = BY_ORT.get(word)
        return found.dtype if found is not None and found.is_in_numpy else None

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape may be fed; a graph of unknown rank takes any."""
        if not self.shape:  # a scalar and what has no shape look alike
            return True
        return len(shape) == len(self.shape) and all(
            not isinstance(law, int) or law == size for law, size in zip(self.shape, shape)
        )

    def __str__(self) -> str:
        return f"{self.type} of shape ({format_sizes(self.shape)})"


class BoundSession:
    """A session of stock onnxruntime whose tensors stay where they are.

    `bind_input` and `bind_output` hold until they are bound anew: the array is read, or written
    to, at every run. Outputs that are not bound come in fresh memory from `run`.
    An output may be bound to the memory of an input where the graph allows it.
    """

    def __init__(
        self,
        model: bytes | str | os.PathLike[str],
        options: SessionOptions | None = None,
        providers: session.ProviderList = CPU,
    ) -> None:
        given = SessionOptions.of(options)
        flush = flushing(given)
        with nullcontext() if flush is None else flush:  # the first session sets its thread too
            native = _open(model, given, providers)
        self._native, self._flush = native, flush
        self._binding = self._native.io_binding()
        self._raw = self._binding._iobinding  # its wrapper looks a device up for each call
        self._device = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
        self.inputs = {a.name: _argument(a) for a in self._native.get_inputs()}
        self.outputs = {a.name: _argument(a) for a in self._native.get_outputs()}
        self._read: dict[str, Any] = {}  # they must live as long as they are bound
        self._written: dict[str, Array] = {}
        self._order: dict[str, int] = {}  # the outputs that the binding knows, in its order
        self._fresh: list[str] = []  # those of them that come in fresh memory
        self._texts = any(each.type == "tensor(string)" for each in self.inputs.values())

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.outputs)

    @property
    def input_types(self) -> dict[str, str]:
        """Each input's type in onnxruntime's words: "tensor(float)"."""
        return {name: argument.type for name, argument in self.inputs.items()}

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata_props."""
        return dict(self._native.get_modelmeta().custom_metadata_map)

    def bind_input(self, name: str, value: Any, *, checked: bool = False) -> None:
        """Read an input from an array, as it is at each run, or from an OrtValue.

        Who has `checked` that it fits says so.
        """
        argument = _known(self.inputs, name, "input")
        if isinstance(value, OrtValue):
            self._binding.bind_ortvalue_input(name, value)
        elif argument.type == "tensor(string)":
            value = np.ascontiguousarray(value, object)  # no binding takes texts
        else:
            if not checked:
                _check(argument, value, "input")
            self._raw.bind_input(name, self._device, *_place(argument, value))
        self._read[name] = value

    def bind_output(self, name: str, array: Array | None) -> None:
        """Write an output into an array at each run; None: into fresh memory again."""
        argument = _known(self.outputs, name, "output")
        if array is None:
            if self._written.pop(name, None) is not None:
                self._fresh.append(name)
            return
        _check(argument, array, "output")
        if not array.flags.writeable:
            raise FeedError(f"output {name!r}: a bound array is written to, this one is read-only")
        self._position(name)
        self._raw.bind_output(name, self._device, *_place(argument, array))
        if name in self._fresh:
            self._fresh.remove(name)
        self._written[name] = array

    def _call(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run the graph in one of onnxruntime's ways, with denormals as the options have them."""
        try:
            if self._flush is None:
                return run(*arguments)
            with self._flush:
                return run(*arguments)
        except Exception as error:
            raise session.explain(error, None) from error

    def run(self, wanted: Iterable[str] | None = None) -> list[Any]:
        """Run once; the outputs asked for (None: all that are not bound) as OrtValues, in order.

        Bound outputs are written whether or not they are asked for.
        """
        if len(self._read) < len(self.inputs):
            missing = next(name for name in self.inputs if name not in self._read)
            raise FeedError(f"input {missing!r} is not bound\nbind_input({missing!r}, ...)")
        names = [n for n in self.outputs if n not in self._written] if wanted is None else wanted
        places = [self._position(name) for name in names]
        if self._texts:
            results = self._run_copied()
            return [results[place] for place in places]
        for name in self._fresh:  # else the last run's memory, which the caller holds, is reused
            self._raw.bind_output(name, self._device)
        self._call(self._native._sess.run_with_iobinding, self._raw, None)
        if not places:
            return []
        found = self._raw.get_outputs()
        return [OrtValue(found[place]) for place in places]

    def _run_copied(self) -> list[Any]:
        """The same for graphs that take texts, with the outputs copied to where they are bound."""
        feeds = {n: to_numpy(v) if is_ort(v) else v for n, v in self._read.items()}
        found = self.run_lists(feeds)
        for name, array in self._written.items():
            array[...] = found[name]
        texts = [name for name, each in self.outputs.items() if each.type == "tensor(string)"]
        return [found[n] if n in texts else to_ort(np.asarray(found[n])) for n in self._order]

    def _position(self, name: str) -> int:
        """Where the binding keeps an output: in the order in which they were first bound."""
        if name not in self._order:
            _known(self.outputs, name, "output")
            self._raw.bind_output(name, self._device)
            self._order[name] = len(self._order)
            self._fresh.append(name)
        return self._order[name]

    def run_lists(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once beside all bindings, numpy in and out: for graphs that take sequences."""
        results = self._call(self._native.run, None, dict(feeds))
        return dict(zip(self.outputs, results, strict=True))


def is_ort(value: Any) -> bool:
    """Whether a value is an OrtValue, or the bare one that onnxruntime's vectors hold."""
    return isinstance(value, (OrtValue, _Bare))


def as_ort(value: Any) -> Any:
    """An OrtValue, of a bare one too."""
    return OrtValue(value) if isinstance(value, _Bare) else value


def taking_turns(options: SessionOptions) -> SessionOptions:
    """The same options, with threads that spin during a run and not after it.

    A step runs several graphs, each with threads of its own: those of the last one, still spinning,
    would keep the next one's from the cores (benchmarks/training.py shows it on two).
    """
    if options.native is not None or _SPINNING in options.config_entries:
        return options
    return replace(options, config_entries={**options.config_entries, _SPINNING: "1"})


def to_numpy(value: Any) -> Any:
    """An OrtValue's tensor as numpy, without a copy; texts are numpy already."""
    return value.numpy() if is_ort(value) else value


def to_ort(array: Array) -> Any:
    """A copy of an array as an OrtValue that owns its memory, as do arrays taken from it."""
    value = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype)
    if array.size:
        value.update_inplace(np.ascontiguousarray(array))
    return value


def _open(
    model: bytes | str | os.PathLike[str], options: SessionOptions, providers: session.ProviderList
) -> Any:
    name = "the model" if isinstance(model, bytes) else repr(os.fspath(model))
    if not isinstance(model, bytes):
        check_readable(Path(model))
    given = model if isinstance(model, bytes) else Path(model).read_bytes()
    look = None if given[4:8] == b"ORTM" else scan_model(given, options.limits, any_domain=True)
    if look is not None and look.external and not isinstance(model, bytes):
        given = os.fspath(model)  # type: ignore[assignment]  # onnxruntime reads what lies beside
    try:
        return session.create(given, options, providers, look=look)
    except OnwardError:
        raise
    except Exception as error:
        raise InvalidModel(f"onnxruntime cannot open {name}: {error}") from error


def _argument(native: Any) -> Argument:
    return Argument(native.name, native.type, tuple(native.shape or ()))


def _known(arguments: Mapping[str, Argument], name: str, kind: str) -> Argument:
    if name not in arguments:
        raise OptionError(
            f"the graph has no {kind} {name!r}\n{suggest_names(name, arguments, 'it has')}"
        )
    return arguments[name]


def _check(argument: Argument, array: Any, kind: str) -> None:
    """Refuse an array that onnxruntime would read, or write, past its end."""
    law = f"{kind} {argument.name!r} is a {argument}"
    if not isinstance(array, np.ndarray):
        raise FeedError(f"{law}, not {type(array).__name__}\nbind a numpy array")
    same = array.dtype == argument.dtype or f"tensor({array.dtype.name})" == argument.type
    if not same or not argument.takes(array.shape):
        raise FeedError(f"{law}, not {array.dtype.name} of shape {array.shape}")
    if not array.flags.c_contiguous:
        raise FeedError(f"{law}: its memory has gaps\nbind a contiguous array")


def _place(argument: Argument, array: Array) -> tuple[Any, tuple[int, ...], int]:
    """An array as type, shape and address."""
    word = argument.type.removeprefix("tensor(").removesuffix(")")
    number = BY_ORT[word].number if word == "bfloat16" else array.dtype.type
    return number, array.shape, array.__array_interface__["data"][0]
