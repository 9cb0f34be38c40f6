"""CapturedProgram: the compiled graphs of one capture, which run calls of a module."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from onward.gradients.backward import sources_of_values
from onward.gradients.stop_gradient import STOPPED, restore_operators
from onward.gradients.table import GRADIENTS
from onward.graph.dtypes import FLOATS
from onward.graph.files import save
from onward.passes.pipelines import PREPARE
from onward.providers.ort.training.lowering import reads_shapes_alone
from onward.pytorch.autograd import ForwardRun, Runs, Segment, Sources, attach
from onward.pytorch.captured_model import Capture
from onward.pytorch.engines import Engine, OnnxRuntimeEngine
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.graphs import DRAW, NOISE, JointGraph, build_joint, split_joint
from onward.pytorch.packed_model import PackedModel
from onward.pytorch.parameter_segments import choose_segments
from onward.pytorch.recorded_runs import Pool, RecordedRuns, RunNames
from onward.pytorch.size_guards import SizeGuards

Tensor = torch.Tensor


@dataclass(frozen=True)
class _Compiled:
    """The graphs of a capture for one set of outputs that receive gradients (cotangents)."""

    cotangents: dict[str, str]  # output -> the input of the backward graph that is its cotangent
    runs: Runs
    recorded: RecordedRuns | None  # the same functions, as CUDA graphs
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    overwritten: frozenset[str]  # buffers that the forward changes and the backward reads
    noise: _NoiseSize | None


class CapturedProgram:
    """Runs calls of a module on the graphs of a capture.

    `wrt` names the capture's inputs that need gradients. If it `is_fixed`, it takes only calls
    with the sizes of the `example`, and is faster for them; with a `pool`, its functions are then
    recorded as CUDA graphs.
    """

    def __init__(
        self,
        capture: Capture,
        engine: Engine,
        wrt: Sequence[str],
        segments: int | None,
        example: Sequence[Tensor],
        *,
        is_fixed: bool,
        pool: Pool | None = None,
    ) -> None:
        self._pool = pool if is_fixed else None
        self.capture, self.engine = capture, engine
        shapes = [tensor.shape for tensor in example]
        numbers = capture.guards.bind(shapes) or {}
        self._sizes = {str(symbol): number for symbol, number in numbers.items()}
        self._is_fixed = is_fixed
        self.guards = SizeGuards(shapes) if is_fixed else capture.guards
        self._segments = segments
        self._results = tuple(dict.fromkeys(r for r in capture.results if isinstance(r, str)))
        self.wrt, self._sources = self._differentiable(wrt)
        self.differentiable = frozenset(self._sources)
        self._expected = self._likely_cotangents()
        by_name = {of: name for name, of in capture.tensors.items()}
        self._changed = _changes_by_dtype(capture)
        # buffers that a call changes: its backward must read the old ones
        self._overwritten = {by_name[of] for of in capture.changes.values() if isinstance(of, str)}
        self._compiled: dict[frozenset[str], _Compiled] = {}
        self._compile(self._expected)

    # -- calls ---------------------------------------------------------------------------------

    def run(self, module_tensors: Mapping[str, Tensor], call: Sequence[Tensor]) -> Any:
        """Run a call: its tensors, and the module's by name. Returns the module's result."""
        given = {name: module_tensors[of] for name, of in self.capture.tensors.items()}
        given |= {name: call[i] for name, i in self.capture.inputs.items()}
        given |= self.capture.hidden.inputs
        compiled = self._compile(self._expected)
        generator = torch.get_rng_state() if self._may_recompute else None
        inputs = _with_random_numbers(compiled, given)
        recorded = compiled.recorded
        runs = compiled.runs if recorded is None else recorded.choose(inputs)
        values = _run_forward(compiled, runs, inputs)
        if self.differentiable:
            kept = self._overwritten if self._may_recompute else compiled.overwritten
            values |= {name: values[name].clone() for name in kept}
            forward = ForwardRun(
                values=values,
                results=self._results,
                fixed=frozenset(self._results) - self.differentiable,
                cotangents=compiled.cotangents,
                sources=self._sources,
                runs=runs,
                recompute=self._recompute_function(generator) if self._may_recompute else None,
                recompute_inputs=self._recompute_inputs(values),
            )
            self._write_changes(values, module_tensors, call)
            tensors = dict(zip(self._results, attach(forward, {n: given[n] for n in self.wrt})))
        else:
            self._write_changes(values, module_tensors, call)
            tensors = {name: values[name] for name in self._results}
        return self._rebuild(tensors, module_tensors, call)

    def _write_changes(
        self, values: Mapping[str, Tensor], module_tensors: Mapping[str, Tensor], call: Any
    ) -> None:
        """Write the new values of buffers, and of tensors that the call changes in place."""
        for changes in self._changed:
            targets = [call[t] if isinstance(t, int) else module_tensors[t] for _, t in changes]
            with torch.no_grad():
                torch._foreach_copy_(targets, [values[name] for name, _ in changes])

    def _rebuild(
        self, tensors: Mapping[str, Tensor], module_tensors: Mapping[str, Tensor], call: Any
    ) -> Any:
        capture, leaves = self.capture, []
        for i, result in enumerate(capture.results):
            if isinstance(result, str):
                leaves.append(tensors[result])
            elif i in capture.returned:
                leaves.append(module_tensors[capture.returned[i]])
            else:
                leaves.append(call[result])
        found = capture.structure.rebuild(leaves)
        if not capture.sets:
            return found
        result, values = found
        for item, value in zip(capture.sets, values):
            item.write(value)
        return result

    def run_for_timing(self, module_tensors: Mapping[str, Tensor], call: Sequence[Tensor]) -> None:
        """Run the graphs once and discard what they compute, to measure them."""
        given = {name: module_tensors[of] for name, of in self.capture.tensors.items()}
        given |= {name: call[i] for name, i in self.capture.inputs.items()}
        given |= self.capture.hidden.inputs
        compiled = self._compile(self._expected)
        with torch.no_grad():
            inputs = _with_random_numbers(compiled, given)
            found = _run_forward(compiled, compiled.runs, inputs)
            for output, cotangent in compiled.cotangents.items():
                found[cotangent] = torch.ones_like(found[output])
            for segment in compiled.runs.segments:
                new = segment.run([found[name] for name in segment.inputs])
                found.update(zip(segment.outputs, new))

    @property
    def is_recorded(self) -> bool:
        """Whether calls run as CUDA graphs."""
        found = self._compile(self._expected).recorded
        return found is not None and found.is_recorded

    # -- unexpected cotangents -----------------------------------------------------------------

    @property
    def _may_recompute(self) -> bool:
        """Whether a differentiable output was left out of the compiled backward pass."""
        return bool(self.differentiable - self._expected)

    def _recompute_inputs(self, values: Mapping[str, Tensor]) -> list[str]:
        """The inputs of the forward, where it may have to run again."""
        if not self._may_recompute:
            return []
        found = self.capture
        given = [*found.tensors, *found.inputs, *found.hidden.inputs]
        return [*given, *([DRAW] if DRAW in values else ())]

    def _recompute_function(self, generator: Tensor | None) -> Any:
        def recompute(
            values: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]
        ) -> dict[str, Tensor]:
            """The gradients for cotangents that the forward run did not expect: run it again."""
            given = {name: values[name] for name in self._recompute_inputs(values)}
            chosen = frozenset(cotangents) & self.differentiable
            self._expected = chosen  # the next call will expect them
            compiled = self._compile(chosen)
            with torch.random.fork_rng(devices=()):
                assert generator is not None
                torch.set_rng_state(generator)
                inputs = _with_random_numbers(compiled, given)
                found = _run_forward(compiled, compiled.runs, inputs)
            found |= {compiled.cotangents[name]: cotangents[name] for name in chosen}
            gradients: dict[str, Tensor] = {}
            for segment in compiled.runs.segments:
                new = segment.run([found[name] for name in segment.inputs])
                found.update(zip(segment.outputs, new))
                gradients |= {name: found[g] for name, g in segment.gradients.items()}
            return gradients

        return recompute

    # -- graphs --------------------------------------------------------------------------------

    def _differentiable(self, wrt: Sequence[str]) -> tuple[tuple[str, ...], Sources]:
        """The inputs that get gradients, and for each result those that it depends on.

        A tensor of the call, or an attribute, that the forward detaches is left out: the graph that
        it comes from may have run its backward already.
        """
        if not wrt:
            return (), {}
        model = restore_operators(PREPARE(self.capture.model.clone()))
        graph, opsets = model.graph, model.opset_imports
        inputs = {str(value.name): value for value in graph.inputs}
        sources = sources_of_values(
            GRADIENTS | STOPPED,
            lambda domain: opsets.get(domain, 1),
            graph,
            [inputs[name] for name in wrt],
        )
        found: Sources = {}
        for value in graph.outputs:
            if value in sources and value.dtype in FLOATS and value.name in self._results:
                bits = sources[value]
                found[str(value.name)] = {name for i, name in enumerate(wrt) if bits >> i & 1}
        attributes = {n for n, of in self.capture.tensors.items() if of in self.capture.attributes}
        given = attributes | self.capture.inputs.keys()
        reached = set().union(*found.values())
        return tuple(name for name in wrt if name not in given or name in reached), found

    def _likely_cotangents(self) -> frozenset[str]:
        """Scalars, such as a loss, if there are any; else all results that have gradients.

        Of the attributes that are set: scalars, too, such as an auxiliary loss.
        """
        shapes = {str(v.name): v.shape for v in self.capture.model.graph.outputs}
        scalars = {n for n in self.differentiable if (s := shapes[n]) is not None and not len(s)}
        own = self.differentiable & {*self.capture.results[: self.capture.own]}
        return frozenset(scalars if scalars & own else scalars | own) or self.differentiable

    def _compile(self, cotangents: frozenset[str]) -> _Compiled:
        found = self._compiled.get(cotangents)
        if found is None:
            found = self._compiled[cotangents] = self._build(cotangents)
        return found

    def _build(self, cotangents: frozenset[str]) -> _Compiled:
        engine = self.engine
        start = time.perf_counter()
        fixed = self._sizes if self._is_fixed else None
        joint = build_joint(self.capture.model, sorted(cotangents), self.wrt, fixed)
        differentiated = time.perf_counter()
        groups = choose_segments(joint, self._segments)
        pair = split_joint(
            *(joint, engine.lower, groups),
            feeds_noise=engine.feeds_noise,
            sizes=self._sizes,
            recomputed=engine.recomputed,
        )
        for graph in (pair.forward, *pair.backward):
            missing = engine.unsupported(graph)
            if missing:
                raise CannotCapture(f"{engine.name} has no kernel for {', '.join(missing)}")
        segments = tuple(
            Segment(
                run=engine.open(graph),
                inputs=_names(graph.graph.inputs),
                outputs=_names(graph.graph.outputs),
                gradients={name: joint.gradients[name] for name in group},
            )
            for graph, group in zip(pair.backward, groups)
        )
        forward = engine.open(pair.forward, is_forward=True)
        # kept for inspection: the last compiled graphs before and after lowering, and the times
        self._joint = (
            replace(joint, model=ir.Model(ir.Graph((), (), nodes=()), ir_version=10), draws=None),
            PackedModel(joint.model),
        )
        self._graphs = [PackedModel(graph) for graph in (pair.forward, *pair.backward)]
        self.seconds = {
            "capture": self.capture.seconds,
            "differentiate": differentiated - start,
            "compile": time.perf_counter() - differentiated,
        }
        runs = Runs(forward, segments)
        inputs, outputs = _names(pair.forward.graph.inputs), _names(pair.forward.graph.outputs)
        overwritten = frozenset(self._overwritten & {n for s in segments for n in s.inputs})
        recorded = None
        if self._pool is not None and segments:
            given = {*self.capture.inputs, *overwritten, DRAW, NOISE}
            names = RunNames(inputs, outputs, given, self._results, joint.cotangents)
            recorded = RecordedRuns(runs, names, self._pool)
        return _Compiled(
            cotangents=joint.cotangents,
            runs=runs,
            recorded=recorded,
            inputs=inputs,
            outputs=outputs,
            overwritten=overwritten,
            noise=None if pair.noise_size is None else _NoiseSize(pair.noise_size),
        )

    @property
    def joint(self) -> JointGraph:
        """The captured model with its gradients, before the engine lowered it."""
        names, model = self._joint
        return replace(names, model=model.unpack())

    @property
    def graphs(self) -> tuple[ir.Model, ...]:
        """The forward graph and the segments of the backward graph, as the engine runs them."""
        return tuple(graph.unpack() for graph in self._graphs)

    def save_graphs(self, folder: str | os.PathLike[str], prefix: str) -> list[Path]:
        """Write the captured graph, the forward graph and the backward graph to a folder."""
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        kinds = itertools.chain(["captured", "forward"], (f"backward_{i}" for i in range(1 << 30)))
        paths = []
        for model, kind in zip((self.capture.model, *self.graphs), kinds):
            path = where / f"{prefix}{kind}.onnx"
            save(model.clone(), path)
            paths.append(path)
        return paths


def _with_random_numbers(compiled: _Compiled, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of the forward: of the module, of the call, and random numbers."""
    values = dict(given)
    if compiled.noise is not None:
        values[NOISE] = torch.rand(compiled.noise.count(values))
    if DRAW in compiled.inputs and DRAW not in values:
        device = next(iter(values.values())).device
        values[DRAW] = torch.randint(1 << 31, (3,), device=device)
    return values


def _run_forward(
    compiled: _Compiled, runs: Runs, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The inputs, and the outputs of the forward graph."""
    found = runs.forward([inputs[name] for name in compiled.inputs])
    return {**inputs, **dict(zip(compiled.outputs, found))}


def _changes_by_dtype(capture: Capture) -> list[list[tuple[str, str | int]]]:
    """Outputs with the tensors that they replace, in groups that one kernel copies."""
    types = {str(value.name): value.dtype for value in capture.model.graph.outputs}
    groups: dict[Any, list[tuple[str, str | int]]] = {}
    for name, target in capture.changes.items():
        groups.setdefault(types[name], []).append((name, target))
    return list(groups.values())


class _NoiseSize:
    """How many random numbers a call needs."""

    def __init__(self, model: ir.Model) -> None:
        self._by_shape = reads_shapes_alone(model)
        self._inputs = _names(model.graph.inputs)
        self._run = OnnxRuntimeEngine(threads=1).open(model)
        self._known: dict[Any, int] = {}

    def count(self, values: Mapping[str, Tensor]) -> int:
        tensors = [values[name] for name in self._inputs]
        key = tuple(tensor.shape for tensor in tensors)
        if self._by_shape and key in self._known:
            return self._known[key]
        if len(self._known) > 1000:
            self._known.clear()
        count = self._known[key] = int(self._run(tensors)[0])
        return count


def _names(values: Any) -> tuple[str, ...]:
    return tuple(str(value.name) for value in values)
