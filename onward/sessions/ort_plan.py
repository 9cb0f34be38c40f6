"""Whole: onnxruntime takes the model as it is; we stand aside, and step in only when it objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from onward.errors import FeedError, MemoryLimitExceeded, ProviderError
from onward.graph.signature import read_feeds
from onward.names import near
from onward.providers.cancellation import terminated_error
from onward.providers.options import RunOptions, SessionOptions
from onward.providers.ort.ort_values import device_of, is_bits, is_packed, to_numpy, to_ort
from onward.providers.ort.session import native_run_options, typed_error

_IS_NATIVE = attrgetter("dtype.isnative")  # whether a numpy array has this machine's byte order


class Whole:
    """A model that one onnxruntime session runs."""

    def __init__(self, native: Any, options: SessionOptions) -> None:
        shared = None if options.shared is None else options.shared.memory_limit
        self.native, self._limit = native, options.memory_limit or shared
        types = [arg.type for arg in (*native.get_inputs(), *native.get_outputs())]
        if any(map(is_packed, types)):
            raise ProviderError("onnxruntime cannot pass sub-byte types in or out")
        self._bits = any(
            map(is_bits, types)
        )  # types that numpy and onnxruntime share as bits alone
        self._has_dlpack = all(map(_is_numbers, types))  # text, sequences and maps have not
        self.get_inputs = native.get_inputs
        self.get_outputs = native.get_outputs
        self.get_overridable_initializers = native.get_overridable_initializers
        self.get_modelmeta = native.get_modelmeta
        self.get_providers = native.get_providers
        self.get_provider_options = native.get_provider_options
        self.end_profiling = native.end_profiling
        self.get_profiling_start_time_ns = native.get_profiling_start_time_ns
        self.io_binding = native.io_binding

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> Any:
        """Run as onnxruntime would; what it cannot read is converted, what is wrong is named."""
        if isinstance(run_options, RunOptions):
            run_options = native_run_options(run_options)
        try:
            if not _are_native(feeds):  # what onnxruntime would run with, and get wrong
                feeds = self._read(feeds)
            if self._bits:
                return self._run_bits(names, feeds, run_options)
            return self.native.run(names, feeds, run_options)
        except FeedError:
            raise
        except Exception as error:
            return self._run_again(names, feeds, run_options, error)

    def _run_bits(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        values = {name: to_ort(value) for name, value in feeds.items()}
        results = self.native.run_with_ort_values(names, values, run_options)
        return [to_numpy(value) for value in results]

    def _run_again(self, names: Any, feeds: Any, run_options: Any, error: Exception) -> Any:
        """onnxruntime refused: convert what it could not read, or say what is wrong."""
        if run_options is not None and run_options.terminate:
            raise terminated_error() from error
        ready = self._diagnose(feeds, error, names)
        if all(ready[name] is value for name, value in feeds.items()):
            raise typed_error(error, self._limit) from error
        try:
            run = self._run_bits if self._bits else self.native.run
            return run(names, ready, run_options)
        except Exception as again:
            raise typed_error(again, self._limit) from again

    def _diagnose(self, feeds: Any, error: Exception, names: Any = None) -> dict[str, Any]:
        """Raise the plain error behind onnxruntime's; where there is none, the feeds to try."""
        known = typed_error(error, self._limit)
        if isinstance(known, MemoryLimitExceeded):
            raise known from error
        ready = self._read(feeds)
        self._wanted(names)
        return ready

    def _read(self, feeds: Any) -> dict[str, Any]:
        """Feeds as onnxruntime reads them; a wrong one is an error that names it."""
        ready = read_feeds(feeds, self.get_inputs(), self.get_overridable_initializers())
        return {name: _on_host(feed) for name, feed in ready.items()}

    def run_async(
        self, names: Any, feeds: Any, callback: Callable[..., None], user_data: Any, options: Any
    ) -> None:
        if any(feed is None for feed in feeds.values()):
            self._read(feeds)
        try:
            native = native_run_options(options)

            def done(results: Any, data: Any, message: str, kept: Any = native) -> None:
                callback(results, data, message)  # until here, onnxruntime reads the options

            self.native.run_async(names, feeds, done, user_data, native)
        except Exception as error:
            self._diagnose(feeds, error, names)
            raise

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> Sequence[Any]:
        options = native_run_options(run_options)
        try:
            return self.native.run_with_ort_values(names, feeds, options)  # type: ignore[no-any-return]
        except Exception as error:
            raise typed_error(error, self._limit) from error

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        """Results as OrtValues, on the GPU where a feed is and onnxruntime computes there."""
        if not self._has_dlpack:
            return list(self.run(names, feeds, run_options))
        ready = read_feeds(feeds, self.get_inputs(), self.get_overridable_initializers())
        wanted, device = self._wanted(names), device_of(ready.values())
        binding, options = self.native.io_binding(), native_run_options(run_options)
        try:
            for name, feed in ready.items():
                binding.bind_ortvalue_input(name, to_ort(feed))
            for name in wanted:
                binding.bind_output(name, device)
            self.native.run_with_iobinding(binding, options)
        except Exception as error:
            if run_options is not None and run_options.terminate:
                raise terminated_error() from error
            raise typed_error(error, self._limit) from error
        return list(binding.get_outputs())

    def _wanted(self, names: Any) -> list[str]:
        """The named outputs (None: all of them); one that the model lacks is an error."""
        given = [arg.name for arg in self.get_outputs()]
        for name in names or ():
            if name not in given:
                raise KeyError(f"no output {name!r}; {near(name, given, 'the model gives')}")
        return list(names) if names else given

    def run_with_iobinding(self, binding: Any, run_options: Any) -> None:
        options = native_run_options(run_options)
        try:
            self.native.run_with_iobinding(binding, options)
        except Exception as error:
            raise typed_error(error, self._limit) from error


def _is_numbers(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _are_native(feeds: Any) -> bool:
    """Whether no feed is None or an array of the other byte order; without a Python loop."""
    try:
        return all(map(_IS_NATIVE, feeds.values()))
    except AttributeError:  # some are lists or another package's tensors
        arrays = [feed for feed in feeds.values() if feed is None or isinstance(feed, np.ndarray)]
        return all(feed is not None and feed.dtype.isnative for feed in arrays)


def _on_host(feed: Any) -> Any:
    """A tensor of another package as numpy's."""
    if feed is None or isinstance(feed, np.ndarray) or not hasattr(feed, "__dlpack__"):
        return feed
    return to_numpy(feed)
