"""The plan of a model that is divided among providers; tensors stay on their devices in between."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import onnx_ir as ir

from onward.errors import FeedError, ProviderError, UnsupportedModel
from onward.graph.signature import NodeArg, read_feeds
from onward.measure.memory.budget import MemoryBudget
from onward.passes.composites import inline_calls
from onward.passes.partition import Part, extract, partition
from onward.providers.choose import DeferredProvider, ProviderChoice
from onward.providers.options import ExecutionMode, SessionOptions
from onward.providers.ort.defects import defect
from onward.providers.ort.ort_values import to_numpy as ort_to_numpy
from onward.providers.ort.ort_values import to_ort
from onward.providers.provider import DLPackExecutable, Executable, WholeModelProvider
from onward.sessions.io_binding import Binding
from onward.sessions.model_description import describe, metadata, numpy_dtype
from onward.sessions.model_metadata import ModelMetadata
from onward.sessions.output_names import output_names
from onward.sessions.partition_trace import PartitionTrace

Computed = tuple[Any, Executable | None]  # a tensor, and the executable that computed it


@dataclass
class CompiledPart:
    """One part, ready to run: its inputs and outputs, and the values that are unused after it."""

    provider: str
    executable: Executable
    inputs: list[str]
    outputs: list[str]
    wave: int  # parts of one wave are independent of each other
    unused: list[str] = field(default_factory=list)


def keep_calls(model: ir.Model, engines: Sequence[DeferredProvider]) -> ir.Model:
    """Keep the calls of domain `onward` that the first engine has kernels for; inline others."""
    lead, opsets = engines[0], model.opset_imports

    def keeps(call: ir.Node) -> bool:
        if lead.is_ort or call.graph is not model.graph:  # another engine may run a body
            return False
        return lead.supports(call, opsets)

    return inline_calls(model, keeps)


def assign(
    model: ir.Model, engines: Sequence[DeferredProvider], choice: ProviderChoice
) -> list[Part]:
    """Give each node to the first engine that supports it, in maximal convex parts."""
    opsets = model.opset_imports

    def first(node: ir.Node) -> int:
        number = first_engine(node, opsets, engines, choice)
        if number is not None:
            return number
        asked = ", ".join(name for engine in engines for name in engine.names)
        raise UnsupportedModel(
            f"no provider runs {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}) "
            f"at opset {opsets.get(node.domain, '?')}: asked {asked}\n"
            "list a provider that has it, or leave fallback enabled"
        )

    lead = engines[0].provider
    if isinstance(lead, WholeModelProvider) and lead.takes(model):
        return [Part(0, list(model.graph))]
    return partition(model.graph, first)


def first_engine(
    node: ir.Node,
    opsets: dict[str, int],
    engines: Sequence[DeferredProvider],
    choice: ProviderChoice,
) -> int | None:
    """The first engine that supports a node and is not known to compute it wrong, or None."""
    moves = node.op_type in choice.failed or (choice.may_move and defect(node))
    for number, engine in enumerate(engines):
        if not (engine.is_ort and moves) and engine.supports(node, opsets):
            return number
    return None


class PartitionedPlan:
    """A prepared model whose parts are compiled, each by its provider."""

    native = None

    def __init__(
        self,
        model: ir.Model,
        parts: Sequence[Part],
        engines: Sequence[DeferredProvider],
        options: SessionOptions,
    ) -> None:
        graph, self._options = model.graph, options
        self._inputs = [describe(value) for value in graph.inputs if not value.is_initializer()]
        self._overridable = [describe(value) for value in graph.inputs if value.is_initializer()]
        self._outputs = [describe(value) for value in graph.outputs]
        self._constants = {  # defaults of inputs, and initializers that are outputs
            str(value.name): value.const_value.numpy()
            for value in (*graph.inputs, *graph.outputs)
            if value.is_initializer() and value.const_value is not None
        }
        made = (value for node in graph for value in node.outputs)
        values = (*graph.inputs, *graph.outputs, *made)
        self._dtypes = {str(value.name): numpy_dtype(value) for value in values}
        self._metadata = metadata(model)
        limit = options.memory_limit
        self._budget = None if limit is None else MemoryBudget(model, limit)
        self._parts = compile_parts(model, parts, engines)
        self._providers = list(dict.fromkeys(n for p in parts for n in engines[p.provider].names))
        self._trace = PartitionTrace() if options.enable_profiling else None
        self._started = time.time_ns() if self._trace is None else self._trace.started
        parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL and len(self._parts) > 1
        threads = options.inter_op_num_threads or 2
        self._pool = ThreadPoolExecutor(threads, "onward") if parallel else None
        self._background = ThreadPoolExecutor(1, "onward-async")

    # -- what it is ----------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        return self._metadata

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self._providers}

    @property
    def parts(self) -> list[tuple[str, list[str], list[str]]]:
        """Which provider runs which part: (provider, inputs, outputs)."""
        return [(part.provider, part.inputs, part.outputs) for part in self._parts]

    def ensure_ready(self) -> None:
        """Providers of this process are always ready."""

    def close(self) -> None:
        """End the threads; the executables end with the last reference to this plan."""
        self._background.shutdown(wait=False)
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    # -- running -------------------------------------------------------------------------------

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        wanted = output_names(names, self._outputs)
        values = self._run(self._readable(feeds), run_options)
        return [self._result(name, values) for name in wanted]

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        """Results as the engines hold them, on the devices where they were computed."""
        wanted = output_names(names, self._outputs)
        values = self._run(self._readable(feeds), run_options)
        return [self._on_device(name, values) for name in wanted]

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        wanted = output_names(names, self._outputs)
        values = self._run(dict(feeds), run_options)
        return [to_ort(self._result(name, values)) for name in wanted]

    def io_binding(self) -> Binding:
        return Binding([arg.name for arg in self._inputs], [arg.name for arg in self._outputs])

    def run_with_iobinding(self, binding: Binding, run_options: Any) -> None:
        names = binding.output_names() or [arg.name for arg in self._outputs]
        values = self._run(binding.feeds(), run_options)
        results = [
            self._on_device(name, values)
            if binding.is_on_device(name)
            else to_ort(self._result(name, values))
            for name in names
        ]
        binding.receive(names, results)

    def run_async(
        self, names: Any, feeds: Any, callback: Callable[..., None], user_data: Any, options: Any
    ) -> None:
        wanted, ready = output_names(names, self._outputs), self._readable(feeds)

        def work() -> None:
            results, message = [], ""
            try:
                results = self.run(wanted, ready, options)
            except Exception as error:  # it is the callback's to read
                message = str(error)
            callback(results, user_data, message)

        self._background.submit(work)

    def _readable(self, feeds: Any) -> dict[str, Any]:
        """Feeds as arrays of the declared types; a wrong one raises an error with its name."""
        ready = read_feeds(feeds, self._inputs, self._overridable)
        for name, feed in ready.items():
            if isinstance(feed, dict):
                raise FeedError(
                    f"input {name!r} is a map, which only onnxruntime takes, for a whole model\n"
                    "open the model without providers, or with only CPUExecutionProvider"
                )
        return ready

    def _run(self, feeds: dict[str, Any], run_options: Any) -> dict[str, Computed]:
        """The feeds and results that are still used, each with the executable that computed it."""
        if self._budget is not None:
            self._budget.check(feeds)
        empty = {arg.name: None for arg in self._inputs}  # an optional that was not fed
        values: dict[str, Computed] = {
            name: (feed, None) for name, feed in {**empty, **self._constants, **feeds}.items()
        }
        start = time.perf_counter_ns()
        for _, wave in groupby(self._parts, key=attrgetter("wave")):
            if run_options is not None and run_options.terminate:
                raise ProviderError("the run was ended by RunOptions.terminate")
            self._run_wave(list(wave), values, run_options)
        if self._trace is not None:
            self._trace.record("Session", "model_run", start)
        return values

    def _run_wave(
        self, parts: list[CompiledPart], values: dict[str, Computed], run_options: Any
    ) -> None:
        def work(part: CompiledPart) -> Sequence[Any]:
            return self._run_part(part, values, run_options)

        each = self._pool.map if self._pool is not None and len(parts) > 1 else map
        for part, results in zip(parts, list(each(work, parts)), strict=True):
            for name, result in zip(part.outputs, results, strict=True):
                values[name] = (result, part.executable)
        for part in parts:
            for name in part.unused:
                values.pop(name, None)

    def _run_part(
        self, part: CompiledPart, values: dict[str, Computed], run_options: Any
    ) -> Sequence[Any]:
        if part.executable.takes_numpy:
            tensors = [self._to_numpy(name, values) for name in part.inputs]
        else:
            tensors = [values[name][0] for name in part.inputs]
        start = time.perf_counter_ns()
        results = part.executable.run(tensors, run_options)
        if self._trace is not None:
            self._record(self._trace, part, start)
        return results

    def _result(self, name: str, values: dict[str, Computed]) -> Any:
        """A value that is the caller's to change: feeds and weights are copied."""
        _, source = values[name]
        result = self._to_numpy(name, values)
        return copy.deepcopy(result) if source is None else result

    def _on_device(self, name: str, values: dict[str, Computed]) -> Any:
        """The same on the value's device."""
        tensor, source = values[name]
        if isinstance(source, DLPackExecutable):
            return source.to_dlpack(tensor)
        if source is not None:
            return tensor
        detached = tensor.detach() if hasattr(tensor, "detach") else tensor
        return copy.deepcopy(detached)

    def _to_numpy(self, name: str, values: dict[str, Computed]) -> Any:
        tensor, source = values[name]
        if source is not None:
            return source.to_numpy(tensor, self._dtypes.get(name))
        return ort_to_numpy(tensor)

    # -- profiling -----------------------------------------------------------------------------

    def _record(self, trace: PartitionTrace, part: CompiledPart, start: int) -> None:
        trace.record(
            "Part",
            f"{part.provider}: {', '.join(part.outputs[:3])}",
            start,
            provider=part.provider,
            part=self._parts.index(part),
            takes=part.inputs,
            gives=part.outputs,
        )

    def end_profiling(self) -> str:
        """Write the trace (Chrome's format) and return its file's name."""
        if self._trace is None:
            return ""
        trace, self._trace = self._trace, None
        parts = enumerate(part.executable for part in self._parts)
        return trace.write(self._options.profile_file_prefix, parts)

    def get_profiling_start_time_ns(self) -> int:
        return self._started


def compile_parts(
    model: ir.Model, parts: Sequence[Part], engines: Sequence[DeferredProvider]
) -> list[CompiledPart]:
    """Compile each part by its engine, in waves of parts that are independent of each other."""
    pieces = [model] if len(parts) == 1 else extract(model.graph, parts)
    waves: list[int] = []
    compiled = []
    for part, piece in zip(parts, pieces, strict=True):
        waves.append(1 + max((waves[need] for need in part.needs), default=-1))
        part.provider, executable = _compile(piece, part.provider, engines)
        inputs = [str(value.name) for value in piece.graph.inputs]
        outputs = [str(value.name) for value in piece.graph.outputs]
        name = engines[part.provider].names[0]
        compiled.append(CompiledPart(name, executable, inputs, outputs, waves[-1]))
    compiled.sort(key=attrgetter("wave"))
    _mark_unused(compiled, {str(value.name) for value in model.graph.outputs})
    return compiled


def _compile(
    piece: ir.Model, number: int, engines: Sequence[DeferredProvider]
) -> tuple[int, Executable]:
    """Compile a part by its engine; if that fails, by the next that supports all its nodes."""
    try:
        return number, engines[number].provider.compile(piece)
    except ProviderError:
        opsets = piece.opset_imports
        for later in range(number + 1, len(engines)):
            if all(engines[later].supports(node, opsets) for node in piece.graph):
                return _compile(piece, later, engines)
        raise


def _mark_unused(parts: Sequence[CompiledPart], kept: Iterable[str]) -> None:
    """Note for each part the values that no later part reads."""
    last = {name: part for part in parts for name in (*part.outputs, *part.inputs)}
    for name, part in last.items():
        if name not in kept:
            part.unused.append(name)
