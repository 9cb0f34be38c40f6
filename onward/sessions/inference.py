"""InferenceSession: hold a model and run it, under the names of ONNX Runtime's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from onward.errors import NodeFailed, OnwardError, OptionError
from onward.graph.paths import absolute
from onward.lazy import LazyModule
from onward.measure.memory.resident_memory import release_free_memory
from onward.providers.choose import Asked, choose, mentions_auto
from onward.providers.options import SessionOptions
from onward.providers.session_log import log_of
from onward.sessions.closed import CLOSED
from onward.sessions.dlpack import reader_for
from onward.sessions.failed_operators import choose_without, is_defined
from onward.sessions.model_reader import ModelReader
from onward.sessions.native_methods import NATIVE_METHODS, native_method
from onward.sessions.open_plan import open_plan, open_source
from onward.sessions.plan import Plan
from onward.sessions.result_cache import ResultCache
from onward.sessions.run_limits import check_run_options, run_limited
from onward.workers.deadline import async_deadline

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.measure.memory import memory_plan as memory
    from onward.measure.memory import output_arrays
    from onward.measure.memory.memory_plan import MemoryPlan
    from onward.measure.tuning import tuning_options as auto_options
    from onward.sessions import auto_plan
else:  # loaded only when they are asked for
    auto_options = LazyModule("onward.measure.tuning.tuning_options")
    auto_plan = LazyModule("onward.sessions.auto_plan")
    memory = LazyModule("onward.measure.memory.memory_plan")
    output_arrays = LazyModule("onward.measure.memory.output_arrays")

T = TypeVar("T")


class InferenceSession:
    """A model, ready to run on the providers that this machine has.

    A drop-in for `onnxruntime.InferenceSession`, which also takes an `onnx.ModelProto` or an
    `onnx_ir.Model`, and a `weights` file (safetensors) whose tensors replace the model's.
    `disabled_optimizers` names optimizers of onnxruntime's to leave out. `enable_fallback` has no
    effect: nodes move to other providers unless SessionOptions.disable_fallback is set.
    """

    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: Any = None,
        providers: Asked = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        weights: str | os.PathLike[str] | None = None,
        disabled_optimizers: Iterable[str] = (),
        enable_fallback: bool = True,
        read_config_from_model: bool = False,
    ) -> None:
        options = SessionOptions.of(sess_options)
        if disabled_optimizers:
            options = replace(options, disabled_optimizers=list(disabled_optimizers))
        if read_config_from_model:
            raise OptionError(
                "read_config_from_model: a model does not set the options of its session here\n"
                "set them in sess_options"
            )
        self._options = options
        self._is_timed = options.run_timeout is not None
        self._source, self._weights = path_or_bytes, weights
        self._plan: Plan = self._open(providers, provider_options)
        self._source, self._weights = absolute(path_or_bytes), absolute(weights)  # for later
        release_free_memory()
        size = options.result_cache_bytes
        self._cache = ResultCache(size) if size else None

    def _open(self, providers: Asked, provider_options: Sequence[Mapping[str, Any]] | None) -> Plan:
        """Open the model on these providers; on the fastest ones if the user asks for "auto"."""
        options = self._options
        providers = providers or options.added_providers or None
        self._is_auto = mentions_auto(providers)
        self._choice = choose(None if self._is_auto else providers, provider_options, options)
        if not self._is_auto:
            return open_source(self._source, self._choice, options, self._weights)
        tuning = auto_options.tuning_options(providers, options)
        source, weights = absolute(self._source), absolute(self._weights)
        return auto_plan.AutoPlan(source, options, tuning, weights)

    # -- closing -------------------------------------------------------------------------------

    def close(self) -> None:
        """Release engine sessions, worker processes and mapped files.

        Any use of the session after it raises SessionClosed; closing twice is fine. Runs of other
        threads end first, except in an isolated session.
        """
        if self._plan is CLOSED:
            return
        self._plan.close()
        self._plan, self._source, self._cache = CLOSED, b"", None
        release_free_memory()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running -------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Compute the named outputs (None: all of them) from the feeds, as numpy arrays."""
        if run_options is not None or self._is_timed:
            return self._within(
                run_options, lambda options: self._answer(output_names, input_feed, options)
            )
        return self._answer(output_names, input_feed, None)

    def _answer(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        if self._cache is None:
            return self._compute(names, feeds, run_options)
        return self._cache.get_or_compute(
            names, feeds, lambda: self._compute(names, feeds, run_options)
        )

    def _within(self, run_options: Any, run: Callable[[Any], T]) -> T:
        """Return `run(options)`, terminated at its deadline if there is one."""
        return run_limited(self._plan, self._options, run_options, run)

    def _compute(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        try:
            return self._plan.run(names, feeds, run_options)
        except NodeFailed as error:
            return self._run_elsewhere(error, names, feeds, run_options)

    def _run_elsewhere(
        self, error: NodeFailed, names: Any, feeds: Any, run_options: Any
    ) -> list[Any]:
        """onnxruntime loaded an operator but failed to run it: another provider may, once."""
        choice = choose_without(error.op_type, self._choice, self._options)
        if choice is None:
            raise error
        reader = ModelReader(self._source, self._options, self._weights)
        call = names, feeds, run_options
        if not is_defined(error.op_type, choice, reader, self._options, call):
            raise error
        log = log_of(self._options)
        log.warning("%s failed in onnxruntime; another provider tries", error.op_type)
        self._choice = choice
        try:
            plan = open_plan(reader, choice, self._options)
            results = plan.run(*call)
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
        seconds = check_run_options(self._plan, self._options, run_options)
        if seconds is None:
            self._plan.run_async(output_names, input_feed, callback, user_data, run_options)
            return
        isolated = self._options.isolated
        options, done, cancel = async_deadline(seconds, run_options, isolated, callback)
        try:
            self._plan.run_async(output_names, input_feed, done, user_data, options)
        except BaseException:
            cancel()
            raise

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> Sequence[Any]:
        """Compute from OrtValues to OrtValues."""
        return self._within(
            run_options,
            lambda options: self._plan.run_with_ort_values(
                output_names, input_dict_ort_values, options
            ),
        )

    def run_with_dlpack(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Compute from tensors of any DLPack library to tensors of the same library.

        Nothing passes through the host: results lie on the device on which the provider computes,
        and feeds that lie elsewhere are moved there. The first feed that is not numpy's says of
        which library the results are: torch, JAX, CuPy, OrtValues. The result cache is not asked.
        """
        to_library = reader_for(input_feed)
        if to_library is None:
            return self.run(output_names, input_feed, run_options)
        results = self._within(
            run_options, lambda options: self._compute_tensors(output_names, input_feed, options)
        )
        return [to_library(result) for result in results]

    def _compute_tensors(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        try:
            return self._plan.run_with_dlpack(names, feeds, run_options)
        except NodeFailed as error:
            self._run_elsewhere(error, names, feeds, run_options)  # changes the plan
            return self._plan.run_with_dlpack(names, feeds, run_options)

    def io_binding(self) -> Any:
        """A fresh binding of inputs and outputs, for `run_with_iobinding`."""
        return self._plan.io_binding()

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Compute from and into what is bound."""
        self._within(run_options, lambda options: self._plan.run_with_iobinding(iobinding, options))

    # -- memory --------------------------------------------------------------------------------

    def memory_plan(self, sizes: Mapping[str, Any] | None = None) -> MemoryPlan:
        """What opening and running take with these sizes, by dynamic dimension, or these feeds."""
        self._refuse_isolated("memory_plan")
        providers = self.get_providers()
        listed = self._choice.listed if self._choice.named else None
        asked = providers if self._is_auto else listed
        return memory.plan_memory(self._source, sizes, asked, self._options, weights=self._weights)

    def allocate_outputs(self, sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """An array for each output, for `run_into`, with these sizes or for these feeds."""
        self._refuse_isolated("allocate_outputs")
        return output_arrays.allocate(self, self._source, self._weights, sizes or {})

    def run_into(
        self,
        outputs_by_name: Mapping[str, Any],
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> None:
        """Compute the named outputs from the feeds, into the arrays given for them."""
        output_arrays.run_into(self, outputs_by_name, input_feed, run_options)

    def _refuse_isolated(self, what: str) -> None:
        if self._options.isolated:
            raise OptionError(
                f"{what} is not available with isolated: it would load the model in this process\n"
                "call it on a session without isolated, if you trust the model"
            )

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
        self.get_providers()  # refuses a closed session
        self._plan = self._open(providers, provider_options)
        release_free_memory()

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
        return self._plan.get_profiling_start_time_ns()


def _native_property(name: str) -> property:
    return property(lambda session: native_method(session._plan, name))


for _name in NATIVE_METHODS:  # as properties: a __getattr__ would slow every attribute of a call
    setattr(InferenceSession, _name, _native_property(_name))
