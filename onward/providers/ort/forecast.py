"""What runs will take in onnxruntime, before any: its own plan of buffers, in its own arena."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.lifetimes import Lifetimes, MemoryRules, lifetimes
from onward.providers.options import ExecutionMode, SessionOptions
from onward.providers.ort.arena import Arena, Chunk, Pattern
from onward.providers.ort.optimized import Optimized
from onward.providers.ort.scratch import ALIASES, RULES, Shape, scratch

_RUNS = 4  # the first learns the pattern, the next ones settle into it
_TEXT = 32  # bytes of a string's handle


@dataclass(frozen=True)
class Forecast:
    """What the runs of an optimised graph take."""

    weights: int  # bytes of the graph's initializers
    lives: Lifetimes
    scratch: list[int]  # bytes that each step's kernel takes beside
    resident: int  # bytes that the runs touch
    reserved: int  # bytes that the arena asks the system for
    unknown: list[str]  # values whose size nobody knows before a run


def forecast(
    optimized: Optimized, shapes: Mapping[str, Sequence[int]], options: SessionOptions, threads: int
) -> Forecast:
    """What runs with inputs of these shapes will take."""
    sizes = _Sizes(optimized.with_shapes(shapes))
    parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL
    rules = MemoryRules(
        ALIASES,
        {} if parallel else RULES.in_place,
        reuses_dead=options.enable_mem_reuse and not parallel,
    )
    lives = lifetimes(optimized.as_planned().graph, rules, sizes.nbytes)
    temporary = _Scratch(sizes, threads)
    arena = _simulate(lives, temporary, patterns=options.enable_mem_pattern and not parallel)
    peaks = [sum(temporary.of(step.node)) for step in lives.steps]
    alone = max(
        (step.live + peak for step, peak in zip(lives.steps, peaks, strict=True)), default=0
    )
    has_arena = options.enable_cpu_mem_arena
    return Forecast(
        optimized.weight_bytes,
        lives,
        peaks,
        arena.resident if has_arena else alone,
        arena.reserved if has_arena else alone,
        sorted(sizes.unknown),
    )


class _Sizes:
    """Concrete shapes by name, from a graph in which they are known."""

    def __init__(self, model: ir.Model) -> None:
        self.unknown: set[str] = set()
        self._known: dict[str, tuple[Shape, ir.DataType | None]] = {}
        for graph in model.graphs():
            made = (value for node in graph for value in node.outputs)
            for value in (*graph.inputs, *graph.initializers.values(), *made):
                if value.name and value.shape is not None and value.shape.is_static():
                    self._known[value.name] = (tuple(value.shape.numpy()), value.dtype)

    def shape(self, value: ir.Value) -> Shape | None:
        found = self._known.get(str(value.name))
        if found is None and value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        return None if found is None else found[0]

    def nbytes(self, value: ir.Value) -> int:
        shape, dtype = self._known.get(str(value.name), (None, None))
        dtype = value.dtype or dtype
        if shape is None or dtype is None:
            self.unknown.add(str(value.name))
            return 0
        width = _TEXT if dtype == ir.DataType.STRING else dtype.itemsize
        total: float = math.prod(shape) * width
        return math.ceil(total)


class _Scratch:
    """The scratch of each node, asked for once."""

    def __init__(self, sizes: _Sizes, threads: int) -> None:
        self._sizes, self._threads = sizes, threads
        self._known: dict[ir.Node, list[int]] = {}

    def of(self, node: ir.Node) -> list[int]:
        if node not in self._known:
            self._known[node] = scratch(node, self._sizes.shape, self._threads)
        return self._known[node]


def _simulate(lives: Lifetimes, temporary: _Scratch, patterns: bool) -> Arena:
    """The arena after some runs; results are let go of between them."""
    arena, pattern = Arena(), Pattern()
    for run in range(_RUNS):
        block = arena.alloc(pattern.size, touches=False) if patterns and run else None
        held: dict[int, Chunk | None] = {}
        for step in lives.steps:
            for number in step.births:
                buffer = lives.buffers[number]
                if block is not None and not buffer.is_output:
                    if buffer.nbytes:
                        arena.touch(block, pattern.blocks[number][0], buffer.nbytes)
                    continue
                held[number] = arena.alloc(buffer.nbytes)
                if run == 0 and not buffer.is_output:
                    pattern.alloc(number, buffer.nbytes)
            _work(arena, temporary.of(step.node), step.inner, temporary)
            for number in step.deaths:
                arena.free(held.pop(number, None))
                if run == 0:
                    pattern.free(number)
        for chunk in (block, *held.values()):
            arena.free(chunk)
    return arena


def _work(arena: Arena, sizes: list[int], inner: Lifetimes | None, temporary: _Scratch) -> None:
    """What a kernel takes while it runs: scratch, and what its subgraph needs."""
    chunks = [arena.alloc(size) for size in sizes]
    if inner is not None:
        held: dict[int, Chunk | None] = {}
        for step in inner.steps:
            for number in step.births:
                held[number] = arena.alloc(inner.buffers[number].nbytes)
            _work(arena, temporary.of(step.node), step.inner, temporary)
            for number in step.deaths:
                arena.free(held.pop(number, None))
        chunks += held.values()
    for chunk in chunks:
        arena.free(chunk)
