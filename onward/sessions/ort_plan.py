"""The plan of a model that one onnxruntime session runs; we step in only when that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from onward.errors import FeedError, MemoryLimitExceeded, ProviderError
from onward.graph.signature import read_feeds
from onward.providers.cancellation import terminated_error
from onward.providers.options import RunOptions, SessionOptions
from onward.providers.ort.ort_values import device_of, is_bits, is_packed, to_numpy, to_ort
from onward.providers.ort.session import native_run_options, typed_error
from onward.sessions.output_names import output_names

_IS_NATIVE = attrgetter("dtype.isnative")  # whether a numpy array has this machine's byte order


class OrtPlan:
    """A model in one onnxruntime session."""

    def __init__(self, native: Any, options: SessionOptions) -> None:
        shared = None if options.shared is None else options.shared.memory_limit
        self.native, self._limit = native, options.memory_limit or shared
        types = [arg.type for arg in (*native.get_inputs(), *native.get_outputs())]
        if any(map(is_packed, types)):
            raise ProviderError("onnxruntime cannot pass sub-byte types in or out")
        self._has_bits = any(map(is_bits, types))  # numpy and onnxruntime share them only as bits
        self._has_dlpack = all(map(_is_numbers, types))  # text, sequences and maps have none
        self.get_inputs = native.get_inputs
        self.get_outputs = native.get_outputs
        self.get_overridable_initializers = native.get_overridable_initializers
        self.get_modelmeta = native.get_modelmeta
        self.get_providers = native.get_providers
        self.get_provider_options = native.get_provider_options
        self.end_profiling = native.end_profiling
        self.io_binding = native.io_binding

    def get_profiling_start_time_ns(self) -> int:
        start = self.native.get_profiling_start_time_ns
        return int(start() if callable(start) else start)  # releases of onnxruntime differ

    def ensure_ready(self) -> None:
        """A session in this process is always ready."""

    def close(self) -> None:
        """onnxruntime's session ends with the last reference to this plan."""

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> Any:
        """Run as onnxruntime would; convert feeds that it cannot read, and name wrong ones."""
        if isinstance(run_options, RunOptions):
            run_options = native_run_options(run_options)
        try:
            if not _are_native(feeds):  # onnxruntime would run with them, and get wrong results
                feeds = self._read(feeds)
            if self._has_bits:
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
        """After onnxruntime failed: convert what it could not read, or name what is wrong."""
        if run_options is not None and run_options.terminate:
            raise terminated_error() from error
        ready = self._diagnose(feeds, error, names)
        if all(ready[name] is value for name, value in feeds.items()):
            raise typed_error(error, self._limit) from error
        try:
            run = self._run_bits if self._has_bits else self.native.run
            return run(names, ready, run_options)
        except Exception as again:
            raise typed_error(again, self._limit) from again

    def _diagnose(self, feeds: Any, error: Exception, names: Any = None) -> dict[str, Any]:
        """Raise the error that explains onnxruntime's; if there is none, return converted feeds."""
        known = typed_error(error, self._limit)
        if isinstance(known, MemoryLimitExceeded):
            raise known from error
        ready = self._read(feeds)
        output_names(names, self.get_outputs())
        return ready

    def _read(self, feeds: Any) -> dict[str, Any]:
        """Feeds as onnxruntime reads them; a wrong one raises an error with its name."""
        ready = read_feeds(feeds, self.get_inputs(), self.get_overridable_initializers())
        return {name: _on_host(feed) for name, feed in ready.items()}

    def run_async(
        self, names: Any, feeds: Any, callback: Callable[..., None], user_data: Any, options: Any
    ) -> None:
        if any(feed is None for feed in feeds.values()):
            self._read(feeds)
        try:
            native = native_run_options(options)

            def done(results: Any, data: Any, message: str, options: Any = native) -> None:
                callback(results, data, message)  # onnxruntime reads the options until here

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
        wanted, device = output_names(names, self.get_outputs()), device_of(ready.values())
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

    def run_with_iobinding(self, binding: Any, run_options: Any) -> None:
        options = native_run_options(run_options)
        try:
            self.native.run_with_iobinding(binding, options)
        except Exception as error:
            raise typed_error(error, self._limit) from error


def _is_numbers(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _are_native(feeds: Any) -> bool:
    """Whether no feed is None or has the other byte order; without a Python loop."""
    try:
        return all(map(_IS_NATIVE, feeds.values()))
    except AttributeError:  # lists, or tensors of other packages
        arrays = [feed for feed in feeds.values() if feed is None or isinstance(feed, np.ndarray)]
        return all(feed is not None and feed.dtype.isnative for feed in arrays)


def _on_host(feed: Any) -> Any:
    """A tensor of another package as a numpy array."""
    if feed is None or isinstance(feed, np.ndarray) or not hasattr(feed, "__dlpack__"):
        return feed
    return to_numpy(feed)
