"""Parts: a model divided among providers, tensors passed on where they lie."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import ProviderError, UnsupportedModel
from onward.graph.signature import NodeArg, check_feeds
from onward.passes.partition import Part, extract, partition
from onward.providers.choose import Choice, Engine
from onward.providers.options import ExecutionMode, SessionOptions
from onward.providers.ort.defects import defect
from onward.providers.ort.values import to_numpy as ort_to_numpy
from onward.providers.ort.values import to_ort
from onward.providers.provider import Executable
from onward.sessions.binding import Binding


@dataclass(frozen=True)
class ModelMetadata:
    """A model's own words about itself, under onnxruntime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass
class Step:
    """One part, ready to run: which values it takes and gives, and which nobody needs after it."""

    provider: str
    executable: Executable
    takes: list[str]
    gives: list[str]
    wave: int
    drops: list[str] = field(default_factory=list)


def assign(model: ir.Model, engines: Sequence[Engine], choice: Choice) -> list[Part]:
    """Give each node to the first engine that supports it, in maximal convex parts."""
    opsets = model.opset_imports

    def first(node: ir.Node) -> int:
        for number, engine in enumerate(engines):
            if engine.is_ort and choice.may_move and (defect(node) or node.op_type in choice.failed):
                continue
            if engine.provider.supports(node, opsets):
                return number
        asked = ", ".join(name for engine in engines for name in engine.names)
        raise UnsupportedModel(
            f"no provider runs {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}) "
            f"at opset {opsets.get(node.domain, '?')}: asked {asked}\n"
            "list a provider that has it, or leave fallback enabled"
        )

    return partition(model.graph, first)


class Parts:
    """A prepared model, its parts compiled, each by its provider."""

    def __init__(
        self, model: ir.Model, parts: Sequence[Part], engines: Sequence[Engine], options: SessionOptions
    ) -> None:
        self._options = options
        self._inputs = [_arg(v) for v in model.graph.inputs if not v.is_initializer()]
        self._outputs = [_arg(v) for v in model.graph.outputs]
        self._defaults = {
            str(v.name): v.const_value.numpy()
            for v in model.graph.inputs
            if v.is_initializer() and v.const_value is not None
        }
        self._overridable = [_arg(v) for v in model.graph.inputs if v.is_initializer()]
        self._dtypes = {str(v.name): _numpy_dtype(v) for v in _all_values(model.graph)}
        self._meta = _metadata(model)
        self._providers = list(dict.fromkeys(n for p in parts for n in engines[p.provider].names))
        self._steps = _compile(model, parts, engines)
        self._events: list[dict[str, Any]] = []
        self._profiling = options.enable_profiling
        self._started = time.perf_counter_ns()
        workers = max(1, options.inter_op_num_threads or 2)
        parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL and len(self._steps) > 1
        self._pool = ThreadPoolExecutor(workers, "onward") if parallel else None
        self._background: ThreadPoolExecutor | None = None

    # -- what it is ----------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        return self._meta

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
        values = self._run(self._readable(feeds), run_options)
        return [self._to_numpy(name, values) for name in self._wanted(names)]

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        values = self._run(dict(feeds), run_options)
        wanted = self._wanted(names)
        return [to_ort(self._to_numpy(name, values)) for name in wanted]

    def run_with_iobinding(self, binding: Binding, run_options: Any) -> None:
        names = binding.output_names() or [arg.name for arg in self._outputs]
        results = self.run_with_ort_values(names, binding.feeds(), run_options)
        binding.receive(names, results)

    def io_binding(self) -> Binding:
        return Binding([arg.name for arg in self._inputs], [arg.name for arg in self._outputs])

    def run_async(
        self, names: Any, feeds: Any, callback: Callable[..., None], user_data: Any, options: Any
    ) -> None:
        feeds = self._readable(feeds)
        wanted = self._wanted(names)

        def work() -> None:
            results, message = [], ""
            try:
                results = self.run(wanted, feeds, options)
            except Exception as error:  # noqa: BLE001 - it is the callback's to read
                message = str(error)
            callback(results, user_data, message)

        if self._background is None:
            self._background = ThreadPoolExecutor(1, "onward-async")
        self._background.submit(work)

    def _readable(self, feeds: Any) -> dict[str, Any]:
        """Feeds as arrays of the declared types; a wrong one is an error that names it."""
        types = {arg.name: self._dtypes.get(arg.name) for arg in (*self._inputs, *self._overridable)}
        ready = {}
        for name, feed in feeds.items():
            is_number = not hasattr(feed, "__dlpack__") and feed is not None
            is_list_of_arrays = isinstance(feed, (list, tuple)) and (
                not feed or hasattr(feed[0], "__dlpack__") or feed[0] is None
            )
            if isinstance(feed, np.generic):
                feed = np.asarray(feed)
            elif is_number and not is_list_of_arrays:
                feed = np.asarray(feed, dtype=types.get(name))
            ready[name] = feed
        check_feeds(ready, self._inputs, [arg.name for arg in self._overridable])
        return ready

    def _wanted(self, names: Sequence[str] | None) -> list[str]:
        given = [arg.name for arg in self._outputs]
        for name in names or ():
            if name not in given:
                raise KeyError(f"no output {name!r}; the model gives {', '.join(map(repr, given))}")
        return list(names) if names else given

    def _run(self, feeds: dict[str, Any], run_options: Any) -> dict[str, tuple[Any, Executable | None]]:
        """Every value that is a feed or a result, with the executable that made it."""
        values: dict[str, tuple[Any, Executable | None]] = {}
        for name, default in self._defaults.items():
            values[name] = (default, None)
        for arg in self._inputs:
            values[arg.name] = (feeds.get(arg.name), None)
        values.update((name, (feed, None)) for name, feed in feeds.items())
        waves: dict[int, list[Step]] = {}
        for step in self._steps:
            waves.setdefault(step.wave, []).append(step)
        for wave in sorted(waves):
            if run_options is not None and run_options.terminate:
                raise ProviderError("the run was ended by RunOptions.terminate")
            self._run_wave(waves[wave], values, run_options)
        return values

    def _run_wave(self, steps: list[Step], values: dict[str, Any], run_options: Any) -> None:
        def work(step: Step) -> Sequence[Any]:
            return self._run_step(step, values, run_options)

        each = self._pool.map if self._pool is not None and len(steps) > 1 else map
        for step, results in zip(steps, list(each(work, steps)), strict=True):
            for name, result in zip(step.gives, results, strict=True):
                values[name] = (result, step.executable)
            for name in step.drops:
                values.pop(name, None)

    def _run_step(self, step: Step, values: dict[str, Any], run_options: Any) -> Sequence[Any]:
        tensors = []
        for name in step.takes:
            tensor, maker = values[name]
            if step.executable.takes_numpy:
                tensor = self._to_numpy(name, values)
            tensors.append(tensor)
        start = time.perf_counter_ns()
        results = step.executable.run(tensors, run_options)
        if self._profiling:
            self._events.append(
                {
                    "cat": "Part",
                    "ph": "X",
                    "pid": 0,
                    "tid": step.wave,
                    "name": f"{step.provider}: {', '.join(step.gives[:3])}",
                    "ts": (start - self._started) / 1e3,
                    "dur": (time.perf_counter_ns() - start) / 1e3,
                    "args": {"provider": step.provider},
                }
            )
        return results

    def _to_numpy(self, name: str, values: dict[str, Any]) -> Any:
        tensor, maker = values[name]
        if maker is not None:
            return maker.to_numpy(tensor, self._dtypes.get(name))
        if tensor is None or isinstance(tensor, (np.ndarray, list, tuple)):
            return tensor
        return ort_to_numpy(tensor) if hasattr(tensor, "element_type") else np.asarray(tensor)

    # -- profiling -----------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Write the trace (Chrome's format) and return its file's name."""
        if not self._profiling:
            return ""
        self._profiling = False
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        path = Path(f"{self._options.profile_file_prefix}_{stamp}.json")
        path.write_text(json.dumps(self._events))
        return str(path)

    def get_profiling_start_time_ns(self) -> int:
        return self._started


def _compile(model: ir.Model, parts: Sequence[Part], engines: Sequence[Engine]) -> list[Step]:
    steps: list[Step] = []
    pieces = [model] if len(parts) == 1 else extract(model.graph, parts)
    for part, piece in zip(parts, pieces, strict=True):
        engine = engines[part.provider]
        wave = 1 + max((steps[need].wave for need in part.needs), default=-1)
        steps.append(
            Step(
                engine.names[0],
                engine.provider.compile(piece),
                [str(v.name) for v in piece.graph.inputs],
                [str(v.name) for v in piece.graph.outputs],
                wave,
            )
        )
    kept = {str(v.name) for v in model.graph.outputs}
    last: dict[str, Step] = {}
    for step in steps:
        for name in (*step.takes, *step.gives):
            if name not in last or last[name].wave <= step.wave:
                last[name] = step
    for name, step in last.items():
        if name not in kept:
            step.drops.append(name)
    return steps


def _all_values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(v for node in graph for v in node.outputs), *graph.outputs]


def _numpy_dtype(value: ir.Value) -> np.dtype[Any] | None:
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    return np.dtype(value.dtype.numpy())


_ORT_WORDS = {"FLOAT": "float", "DOUBLE": "double", "STRING": "string", "BOOL": "bool"}


def _spell(kind: Any) -> str:
    """An onnx-ir type in onnxruntime's words."""
    if kind is None:
        return ""
    if isinstance(kind, ir.SequenceType):
        return f"seq({_spell(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_spell(kind.elem_type)})"
    dtype = kind.dtype
    return f"tensor({_ORT_WORDS.get(dtype.name, dtype.name.lower())})"


def _arg(value: ir.Value) -> NodeArg:
    shape = [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return NodeArg(str(value.name), _spell(value.type), shape)


def _metadata(model: ir.Model) -> ModelMetadata:
    return ModelMetadata(
        model.producer_name or "",
        model.graph.name or "",
        model.domain or "",
        model.doc_string or "",
        model.graph.doc_string or "",
        model.model_version or 0,
        dict(model.metadata_props),
    )
