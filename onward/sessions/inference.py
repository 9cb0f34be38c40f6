"""InferenceSession: hold a model and run it, under the names of ONNX Runtime's."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import (
    InvalidModel,
    MemoryLimitExceeded,
    NodeFailed,
    OnwardError,
    OptionError,
    UnsupportedModel,
)
from onward.graph.paths import check_readable
from onward.lazy import LazyModule
from onward.providers.choose import Asked, Choice, choose
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.providers.ort.defects import CAST_TO_HALF, WORDS, adds_in_half
from onward.sessions.cache import ResultCache
from onward.sessions.whole import Whole

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.sessions import planning
    from onward.sessions.parts import Parts
else:  # loaded only when onnxruntime does not take the model as it is
    planning = LazyModule("onward.sessions.planning")

log = logging.getLogger("onward")
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 3: logging.ERROR, 4: logging.CRITICAL}
_EXTERNAL = b"\x0a\x08location"  # the key that external data begins with


class InferenceSession:
    """A model, ready to run on the providers that this machine has.

    A drop-in for `onnxruntime.InferenceSession`, which also takes an `onnx.ModelProto` or an
    `onnx_ir.Model`, and a `weights` file (safetensors) whose tensors replace the model's.
    """

    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: Any = None,
        providers: Asked = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        weights: str | os.PathLike[str] | None = None,
    ) -> None:
        options = self._options = SessionOptions.of(sess_options)
        self._source, self._weights = path_or_bytes, weights
        log.setLevel(_LEVELS.get(options.log_severity_level, logging.WARNING))
        self._choice = choose(providers, provider_options, options)
        self._plan: Whole | Parts = _open(path_or_bytes, self._choice, options, weights)
        self._cache: ResultCache | None = None
        if options.result_cache_bytes:
            if _is_ort_format(path_or_bytes):
                raise OptionError(
                    "result_cache_bytes: nobody sees whether an ORT-format model draws at random\n"
                    "leave the cache off, or use the ONNX model"
                )
            planning.check_deterministic(path_or_bytes)
            self._cache = ResultCache(options.result_cache_bytes)

    # -- running -------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Compute the named outputs (None: all of them) from the feeds, as numpy arrays."""
        if self._cache is not None:
            return self._remembered(output_names, input_feed, run_options)
        return self._compute(output_names, input_feed, run_options)

    def _compute(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        try:
            results: list[Any] = self._plan.run(names, feeds, run_options)
        except NodeFailed as error:
            return self._run_elsewhere(error, names, feeds, run_options)
        return results

    def _remembered(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        """The results of these very feeds, from the cache where it has them."""
        assert self._cache is not None
        key = self._cache.key(names, feeds)
        found = self._cache.get(key) if key is not None else None
        if found is not None:
            return found
        results = self._compute(names, feeds, run_options)
        if key is not None:
            self._cache.put(key, results)
        return results

    def _run_elsewhere(
        self, error: NodeFailed, names: Any, feeds: Any, run_options: Any
    ) -> list[Any]:
        """onnxruntime loaded an operator but failed to run it: another provider may, once."""
        failed = self._choice.failed | {error.op_type}
        if (
            not self._choice.may_move
            or failed == self._choice.failed
            or self._options.disable_fallback
        ):
            raise error
        log.warning("%s failed in onnxruntime; another provider tries", error.op_type)
        self._choice = replace(self._choice, failed=failed)
        try:
            plan = _open(self._source, self._choice, self._options, self._weights)
            results: list[Any] = plan.run(names, feeds, run_options)
        except OnwardError:
            raise error from None
        self._plan = plan
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Compute in the background; then `callback(results, user_data, error message)`."""
        self._plan.run_async(output_names, input_feed, callback, user_data, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> Sequence[Any]:
        """Compute from OrtValues to OrtValues."""
        return self._plan.run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def io_binding(self) -> Any:
        """A fresh binding of inputs and outputs, for `run_with_iobinding`."""
        return self._plan.io_binding()

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Compute from and into what is bound."""
        self._plan.run_with_iobinding(iobinding, run_options)

    # -- what it is ----------------------------------------------------------------------------

    def get_inputs(self) -> Sequence[Any]:
        """The inputs that a run needs: objects with `name`, `type` and `shape`."""
        return self._plan.get_inputs()

    def get_outputs(self) -> Sequence[Any]:
        """The outputs that a run gives: objects with `name`, `type` and `shape`."""
        return self._plan.get_outputs()

    def get_overridable_initializers(self) -> Sequence[Any]:
        """The initializers that a feed may replace."""
        return self._plan.get_overridable_initializers()

    def get_modelmeta(self) -> Any:
        """The model's producer, version, description and metadata."""
        return self._plan.get_modelmeta()

    def get_providers(self) -> list[str]:
        """The providers in use, the preferred one first."""
        return list(self._plan.get_providers())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider in use."""
        return dict(self._plan.get_provider_options())

    def set_providers(
        self, providers: Asked = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Open the model again on other providers."""
        self._choice = choose(providers, provider_options, self._options)
        self._plan = _open(self._source, self._choice, self._options, self._weights)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def disable_fallback(self) -> None:
        """Let nothing but the listed providers run nodes from now on (see `set_providers`)."""
        self._options.disable_fallback = True

    def enable_fallback(self) -> None:
        """Let other providers run the nodes that the listed ones cannot."""
        self._options.disable_fallback = False

    @property
    def cache(self) -> ResultCache | None:
        """The result cache, where one was asked for: its bytes, hits, misses and hit rate."""
        return self._cache

    def end_profiling(self) -> str:
        """Stop profiling; the name of the trace's file."""
        return self._plan.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling started."""
        start = self._plan.get_profiling_start_time_ns
        return int(start() if callable(start) else start)


def _open(
    source: Source, choice: Choice, options: SessionOptions, weights: str | os.PathLike[str] | None
) -> Whole | Parts:
    """onnxruntime takes the model as it is where it is asked first and can; else it is planned."""
    if isinstance(source, (str, os.PathLike)):
        check_readable(Path(source))
    if _is_ort_format(source):
        return _open_ort_format(source, choice, options)
    data = _raw(source) if weights is None else None
    why: Exception | None = None
    if data is not None and choice.leading_ort and not _needs_planning(data, choice):
        _check_size(len(data), options)
        try:
            whole = Whole(ort.create(data, options, choice.leading_ort), options)
            if choice.named or not _computes_in_half(whole, data):
                return whole
        except Exception as error:  # another way may open it; else this is the cause
            why = error
    log.info("the model is not for onnxruntime as it is: %s", why or "see docs/providers.md")
    try:
        return planning.plan(source, choice, options, weights)
    except UnsupportedModel as error:
        raise error from why


def _open_ort_format(source: Source, choice: Choice, options: SessionOptions) -> Whole:
    """ORT format is onnxruntime's own: no other engine reads it."""
    if not choice.leading_ort:
        raise InvalidModel("an ORT-format model runs on onnxruntime's providers alone\nlist one")
    data = _raw(source)
    assert data is not None
    _check_size(len(data), options)
    try:
        return Whole(ort.create(data, options, choice.leading_ort), options)
    except Exception as error:
        raise InvalidModel(f"onnxruntime cannot load this ORT-format model: {error}") from error


def _raw(source: Source) -> bytes | None:
    """The model's own bytes, where onnxruntime can read them without us."""
    if isinstance(source, bytes):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return path.read_bytes() if path.suffix in (".onnx", ".ort", "") else None
    return None


def _needs_planning(data: bytes, choice: Choice) -> bool:
    """Whether a look inside is needed before onnxruntime may have the model as it is.

    From bytes, it would look for external data in the working directory; and unless the user
    named it, what it is known to get wrong goes elsewhere.
    """
    suspicious = choice.may_move and any(word in data for word in WORDS)
    return bool(choice.failed) or suspicious or _EXTERNAL in data


def _computes_in_half(whole: Whole, data: bytes) -> bool:
    """Whether the model may add up float16 products, and onnxruntime would do so in float16."""
    types = {arg.type for arg in (*whole.get_inputs(), *whole.get_outputs())}
    return ("tensor(float16)" in types or CAST_TO_HALF in data) and adds_in_half()


def _is_ort_format(source: Source) -> bool:
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".ort"


def _check_size(size: int, options: SessionOptions) -> None:
    if options.memory_limit is not None and size > options.memory_limit:
        raise MemoryLimitExceeded(
            f"the model's {size:,} bytes are more than the memory limit of {options.memory_limit:,}"
        )
