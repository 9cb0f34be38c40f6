"""BoundSession: an onnxruntime session whose inputs and outputs stay bound to numpy arrays.

Training binds its parameters, gradients and slots once; a run then copies nothing but its feeds.
Needs onnxruntime and numpy only.
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
from onward.message_text import format_sizes, suggest_names
from onward.providers.options import SessionOptions
from onward.providers.ort import session
from onward.providers.ort.denormals import flush_context

Array = np.ndarray[Any, Any]
OrtValue = onnxruntime.OrtValue
_NativeValue = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue  # OrtValue wraps one

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
        """The numpy type; uint16 for bfloat16. None if it is not a tensor or has no numpy type."""
        word = self.type.removeprefix("tensor(").removesuffix(")")
        if word == "bfloat16":
            return np.dtype(np.uint16)
        found = BY_ORT.get(word)
        return found.dtype if found is not None and found.is_in_numpy else None

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape may be fed; an input of unknown rank takes any."""
        if not self.shape:  # a scalar, or a shape that is unknown
            return True
        if len(shape) != len(self.shape):
            return False
        for known, size in zip(self.shape, shape):  # a generator would be slower
            if known != size and isinstance(known, int):
                return False
        return True

    def __str__(self) -> str:
        return f"{self.type} of shape ({format_sizes(self.shape)})"


class BoundSession:
    """A session of stock onnxruntime with bound inputs and outputs.

    A bound array is read, or written to, at every run, until another one is bound. Outputs that
    are not bound are returned by `run` in new memory. An output may be bound to the memory of an
    input where the graph allows it.
    """

    def __init__(
        self,
        model: bytes | str | os.PathLike[str],
        options: SessionOptions | None = None,
        providers: session.ProviderList = CPU,
    ) -> None:
        given = SessionOptions.of(options)
        flush = flush_context(given)
        with (
            nullcontext() if flush is None else flush
        ):  # the first session changes the calling thread, too
            native = open_native(model, given, providers)
        self._native, self._flush = native, flush
        self._binding = self._native.io_binding()
        self._raw = (
            self._binding._iobinding
        )  # the wrapper is slower: it looks up a device in each call
        self._device = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
        self.inputs = {a.name: _argument(a) for a in self._native.get_inputs()}
        self.outputs = {a.name: _argument(a) for a in self._native.get_outputs()}
        self._read: dict[str, Any] = {}  # keeps them alive while they are bound
        self._written: dict[str, Array] = {}
        self._order: dict[str, int] = {}  # outputs known to the binding, in its order
        self._fresh: list[str] = []  # outputs that get new memory in each run
        strings = [each for each in self.inputs.values() if each.type == "tensor(string)"]
        self.is_in_place = not strings  # whether runs access the bound memory, or copies of it

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.outputs)

    @property
    def input_types(self) -> dict[str, str]:
        """Each input's type as onnxruntime writes it: "tensor(float)"."""
        return {name: argument.type for name, argument in self.inputs.items()}

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata_props."""
        return dict(self._native.get_modelmeta().custom_metadata_map)

    def bind_input(self, name: str, value: Any, *, checked: bool = False) -> None:
        """Bind an input to an array or an OrtValue, which is read at each run.

        `checked`: the caller has checked its type and shape.
        """
        argument = _known(self.inputs, name, "input")
        if isinstance(value, OrtValue):
            self._binding.bind_ortvalue_input(name, value)
        elif argument.type == "tensor(string)":
            value = np.ascontiguousarray(value, object)  # bindings do not support strings
        else:
            if not checked:
                _check(argument, value, "input")
            self._raw.bind_input(name, self._device, *_place(argument, value))
        self._read[name] = value

    def bind_output(self, name: str, array: Array | None) -> None:
        """Bind an output to an array, which each run writes to; None: unbind it."""
        argument = _known(self.outputs, name, "output")
        if array is None:
            if self._written.pop(name, None) is not None:
                self._fresh.append(name)
            return
        _check(argument, array, "output")
        if not array.flags.writeable:
            raise FeedError(
                f"output {name!r}: the array is read-only, and a bound output is written to"
            )
        self._position(name)
        self._raw.bind_output(name, self._device, *_place(argument, array))
        if name in self._fresh:
            self._fresh.remove(name)
        self._written[name] = array

    def _call(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Call a run method of onnxruntime, with denormals flushed if the options say so."""
        try:
            if self._flush is None:
                return run(*arguments)
            with self._flush:
                return run(*arguments)
        except Exception as error:
            raise session.typed_error(error, None) from error

    def run(self, wanted: Iterable[str] | None = None) -> list[Any]:
        """Run once. Returns the `wanted` outputs (None: all that are not bound) as OrtValues.

        Bound outputs are always written.
        """
        if len(self._read) < len(self.inputs):
            missing = next(name for name in self.inputs if name not in self._read)
            raise FeedError(f"input {missing!r} is not bound\nbind_input({missing!r}, ...)")
        names = [n for n in self.outputs if n not in self._written] if wanted is None else wanted
        places = [self._position(name) for name in names]
        if not self.is_in_place:
            results = self._run_copied()
            return [results[place] for place in places]
        for name in self._fresh:  # else the results of the last run would be overwritten
            self._raw.bind_output(name, self._device)
        self._call(self._native._sess.run_with_iobinding, self._raw, None)
        if not places:
            return []
        found = self._raw.get_outputs()
        return [OrtValue(found[place]) for place in places]

    def _run_copied(self) -> list[Any]:
        """Run a graph with string inputs; outputs are copied to the bound arrays."""
        feeds = {n: to_numpy(v) if is_ort_value(v) else v for n, v in self._read.items()}
        found = self.run_unbound(feeds)
        for name, array in self._written.items():
            array[...] = found[name]
        strings = [name for name, each in self.outputs.items() if each.type == "tensor(string)"]
        return [
            found[n] if n in strings else copy_to_ort(np.asarray(found[n])) for n in self._order
        ]

    def _position(self, name: str) -> int:
        """The index of an output in the binding, which has the order of first use."""
        if name not in self._order:
            _known(self.outputs, name, "output")
            self._raw.bind_output(name, self._device)
            self._order[name] = len(self._order)
            self._fresh.append(name)
        return self._order[name]

    def run_unbound(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once without bindings, with numpy arrays: for graphs that take sequences."""
        results = self._call(self._native.run, None, dict(feeds))
        return dict(zip(self.outputs, results, strict=True))


def is_ort_value(value: Any) -> bool:
    """Whether a value is an OrtValue, or the native one that onnxruntime's vectors hold."""
    return isinstance(value, (OrtValue, _NativeValue))


def stop_spinning_after_runs(options: SessionOptions) -> SessionOptions:
    """Options whose threads stop spinning (busy waiting) when a run ends.

    A step runs several graphs, each with its own threads: threads of the last graph that still
    spin would take the cores from those of the next (benchmarks/training.py shows it on two).
    """
    if options.native is not None or _SPINNING in options.config_entries:
        return options
    return replace(options, config_entries={**options.config_entries, _SPINNING: "1"})


def to_numpy(value: Any) -> Any:
    """An OrtValue's tensor as numpy, without a copy; strings are numpy already."""
    return value.numpy() if is_ort_value(value) else value


def copy_to_ort(array: Array) -> Any:
    """Copy an array to an OrtValue that owns its memory."""
    value = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype)
    if array.size:
        value.update_inplace(np.ascontiguousarray(array))
    return value


def open_native(
    model: bytes | str | os.PathLike[str], options: SessionOptions, providers: session.ProviderList
) -> Any:
    """An onnxruntime session of a model that was scanned first."""
    name = "the model" if isinstance(model, bytes) else repr(os.fspath(model))
    if not isinstance(model, bytes):
        check_readable(Path(model))
    given = model if isinstance(model, bytes) else Path(model).read_bytes()
    scan = None if given[4:8] == b"ORTM" else scan_model(given, options.limits, any_domain=True)
    if scan is not None and scan.external and not isinstance(model, bytes):
        given = os.fspath(model)  # type: ignore[assignment]  # so that onnxruntime finds external data
    try:
        return session.create(given, options, providers, scan=scan)
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
    """Refuse an array that does not fit: onnxruntime would access memory past its end."""
    is_array = isinstance(array, np.ndarray)
    if is_array and _has_type(argument, array) and argument.takes(array.shape):
        if array.flags.c_contiguous:
            return
        problem = ": the array is not contiguous\nbind a C-contiguous array"
    elif is_array:
        problem = f", not {array.dtype.name} of shape {array.shape}"
    else:
        problem = f", not {type(array).__name__}\nbind a numpy array"
    raise FeedError(f"{kind} {argument.name!r} is a {argument}{problem}")


def _has_type(argument: Argument, array: Array) -> bool:
    return array.dtype == argument.dtype or f"tensor({array.dtype.name})" == argument.type


def _place(argument: Argument, array: Array) -> tuple[Any, tuple[int, ...], int]:
    """The type, shape and address of an array, as bindings take them."""
    is_bfloat = argument.type == "tensor(bfloat16)"
    number = BY_ORT["bfloat16"].number if is_bfloat else array.dtype.type
    return number, array.shape, array.__array_interface__["data"][0]
