"""Parts: a model divided among providers, tensors passed on where they lie."""

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
from onward.names import near
from onward.passes.composites import inline_calls
from onward.passes.partition import Part, extract, partition
from onward.providers.choose import Choice, Engine
from onward.providers.options import ExecutionMode, SessionOptions
from onward.providers.ort.defects import defect
from onward.providers.ort.ort_values import to_numpy as ort_to_numpy
from onward.providers.ort.ort_values import to_ort
from onward.providers.provider import DLPackExecutable, Executable, WholeModelProvider
from onward.sessions.io_binding import Binding
from onward.sessions.model_description import describe, metadata, numpy_dtype
from onward.sessions.model_metadata import ModelMetadata
from onward.sessions.partition_trace import Journal

Made = tuple[Any, Executable | None]  # a tensor, and the executable that made it


@dataclass
class Step:
    """One part, ready to run: which values it takes and gives, and which nobody needs after it."""

    provider: str
    executable: Executable
    takes: list[str]
    gives: list[str]
    wave: int  # steps of one wave do not need each other
    drops: list[str] = field(default_factory=list)


def keep_calls(model: ir.Model, engines: Sequence[Engine]) -> ir.Model:
    """Keep the calls of domain `onward` that the leading engine has whole, inline all others."""
    lead, opsets = engines[0], model.opset_imports

    def keeps(call: ir.Node) -> bool:
        if lead.is_ort or call.graph is not model.graph:  # a body's node may be another engine's
            return False
        return lead.supports(call, opsets)

    return inline_calls(model, keeps)


def assign(model: ir.Model, engines: Sequence[Engine], choice: Choice) -> list[Part]:
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
    node: ir.Node, opsets: dict[str, int], engines: Sequence[Engine], choice: Choice
) -> int | None:
    """The first engine that supports a node and is not known to get it wrong; None: nobody."""
    moves = node.op_type in choice.failed or (choice.may_move and defect(node))
    for number, engine in enumerate(engines):
        if not (engine.is_ort and moves) and engine.supports(node, opsets):
            return number
    return None


class Parts:
    """A prepared model, its parts compiled, each by its provider."""

    def __init__(
        self,
        model: ir.Model,
        parts: Sequence[Part],
        engines: Sequence[Engine],
        options: SessionOptions,
    ) -> None:
        graph, self._options = model.graph, options
        self._inputs = [describe(value) for value in graph.inputs if not value.is_initializer()]
        self._overridable = [describe(value) for value in graph.inputs if value.is_initializer()]
        self._outputs = [describe(value) for value in graph.outputs]
        self._constants = {  # what nobody computes: defaults of inputs, weights that are outputs
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
        self._steps = compile_parts(model, parts, engines)
        self._providers = list(dict.fromkeys(n for p in parts for n in engines[p.provider].names))
        self._journal = Journal() if options.enable_profiling else None
        self._started = time.time_ns() if self._journal is None else self._journal.started
        parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL and len(self._steps) > 1
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
    def steps(self) -> list[tuple[str, list[str], list[str]]]:
        """Which provider runs which part: (provider, values it takes, values it gives)."""
        return [(step.provider, step.takes, step.gives) for step in self._steps]

    # -- running -------------------------------------------------------------------------------

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        wanted = self._wanted(names)
        values = self._run(self._readable(feeds), run_options)
        return [self._result(name, values) for name in wanted]

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        """Results as the engines hold them, on the devices where they were computed."""
        wanted = self._wanted(names)
        values = self._run(self._readable(feeds), run_options)
        return [self._on_device(name, values) for name in wanted]

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        wanted = self._wanted(names)
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
        wanted, ready = self._wanted(names), self._readable(feeds)

        def work() -> None:
            results, message = [], ""
            try:
                results = self.run(wanted, ready, options)
            except Exception as error:  # it is the callback's to read
                message = str(error)
            callback(results, user_data, message)

        self._background.submit(work)

    def _wanted(self, names: Sequence[str] | None) -> list[str]:
        given = [arg.name for arg in self._outputs]
        for name in names or ():
            if name not in given:
                raise KeyError(f"no output {name!r}; {near(name, given, 'the model gives')}")
        return list(names) if names else given

    def _readable(self, feeds: Any) -> dict[str, Any]:
        """Feeds as arrays of the declared types; a wrong one is an error that names it."""
        ready = read_feeds(feeds, self._inputs, self._overridable)
        for name, feed in ready.items():
            if isinstance(feed, dict):
                raise FeedError(
                    f"input {name!r} is a map, which only onnxruntime takes, and only by itself\n"
                    "open the model without providers, or with CPUExecutionProvider alone"
                )
        return ready

    def _run(self, feeds: dict[str, Any], run_options: Any) -> dict[str, Made]:
        """Every feed and every result that is left, each with the executable that made it."""
        if self._budget is not None:
            self._budget.check(feeds)
        empty = {arg.name: None for arg in self._inputs}  # an optional that was not fed
        values: dict[str, Made] = {
            name: (feed, None) for name, feed in {**empty, **self._constants, **feeds}.items()
        }
        start = time.perf_counter_ns()
        for _, wave in groupby(self._steps, key=attrgetter("wave")):
            if run_options is not None and run_options.terminate:
                raise ProviderError("the run was ended by RunOptions.terminate")
            self._run_wave(list(wave), values, run_options)
        if self._journal is not None:
            self._journal.note("Session", "model_run", start)
        return values

    def _run_wave(self, steps: list[Step], values: dict[str, Made], run_options: Any) -> None:
        def work(step: Step) -> Sequence[Any]:
            return self._run_step(step, values, run_options)

        each = self._pool.map if self._pool is not None and len(steps) > 1 else map
        for step, results in zip(steps, list(each(work, steps)), strict=True):
            for name, result in zip(step.gives, results, strict=True):
                values[name] = (result, step.executable)
        for step in steps:
            for name in step.drops:
                values.pop(name, None)

    def _run_step(self, step: Step, values: dict[str, Made], run_options: Any) -> Sequence[Any]:
        if step.executable.takes_numpy:
            tensors = [self._to_numpy(name, values) for name in step.takes]
        else:
            tensors = [values[name][0] for name in step.takes]
        start = time.perf_counter_ns()
        results = step.executable.run(tensors, run_options)
        if self._journal is not None:
            self._note(self._journal, step, start)
        return results

    def _result(self, name: str, values: dict[str, Made]) -> Any:
        """A value as the caller's own: what no executable made, a feed or a weight, is copied."""
        _, maker = values[name]
        result = self._to_numpy(name, values)
        return copy.deepcopy(result) if maker is None else result

    def _on_device(self, name: str, values: dict[str, Made]) -> Any:
        """A value as the caller's own, where it lies."""
        tensor, maker = values[name]
        if isinstance(maker, DLPackExecutable):
            return maker.to_dlpack(tensor)
        if maker is not None:
            return tensor
        detached = tensor.detach() if hasattr(tensor, "detach") else tensor
        return copy.deepcopy(detached)

    def _to_numpy(self, name: str, values: dict[str, Made]) -> Any:
        tensor, maker = values[name]
        if maker is not None:
            return maker.to_numpy(tensor, self._dtypes.get(name))
        return ort_to_numpy(tensor)

    # -- profiling -----------------------------------------------------------------------------

    def _note(self, journal: Journal, step: Step, start: int) -> None:
        journal.note(
            "Part",
            f"{step.provider}: {', '.join(step.gives[:3])}",
            start,
            provider=step.provider,
            part=self._steps.index(step),
            takes=step.takes,
            gives=step.gives,
        )

    def end_profiling(self) -> str:
        """Write the trace (Chrome's format) and return its file's name."""
        if self._journal is None:
            return ""
        journal, self._journal = self._journal, None
        parts = enumerate(step.executable for step in self._steps)
        return journal.write(self._options.profile_file_prefix, parts)

    def get_profiling_start_time_ns(self) -> int:
        return self._started


def compile_parts(model: ir.Model, parts: Sequence[Part], engines: Sequence[Engine]) -> list[Step]:
    """Each part by its engine, in waves of parts that do not need each other."""
    pieces = [model] if len(parts) == 1 else extract(model.graph, parts)
    waves: list[int] = []
    steps = []
    for part, piece in zip(parts, pieces, strict=True):
        waves.append(1 + max((waves[need] for need in part.needs), default=-1))
        part.provider, executable = _compile(piece, part.provider, engines)
        takes = [str(value.name) for value in piece.graph.inputs]
        gives = [str(value.name) for value in piece.graph.outputs]
        name = engines[part.provider].names[0]
        steps.append(Step(name, executable, takes, gives, waves[-1]))
    steps.sort(key=attrgetter("wave"))
    _mark_drops(steps, {str(value.name) for value in model.graph.outputs})
    return steps


def _compile(piece: ir.Model, number: int, engines: Sequence[Engine]) -> tuple[int, Executable]:
    """By its engine; where that one takes the nodes but not the whole, by the next that can."""
    try:
        return number, engines[number].provider.compile(piece)
    except ProviderError:
        opsets = piece.opset_imports
        for later in range(number + 1, len(engines)):
            if all(engines[later].supports(node, opsets) for node in piece.graph):
                return _compile(piece, later, engines)
        raise


def _mark_drops(steps: Sequence[Step], kept: Iterable[str]) -> None:
    """Note for each step the values that nobody reads after it."""
    last = {name: step for step in steps for name in (*step.gives, *step.takes)}
    for name, step in last.items():
        if name not in kept:
            step.drops.append(name)
