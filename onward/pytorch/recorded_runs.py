"""RecordedRuns: a program's forward and backward, recorded as CUDA graphs.

    the first calls      run the functions, which compiles them
    then                 forward and backward are recorded, in one pool of memory
    every other call     copies the call's tensors to the graphs' buffers, and replays

A replay costs the host one call, however many kernels there are. Parameters are read where they
are: if they move, they are recorded again. Saved values stay in the graphs' memory until the next
forward. So a forward is replayed only if the backward of the last one has run or cannot run any
more; else the functions themselves run. Results and gradients are copied out.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed

from onward.message_text import first_line
from onward.providers.torch.training.packed_results import PackedResults
from onward.pytorch.autograd import Runs
from onward.pytorch.engines import Run

Tensor = torch.Tensor
log = logging.getLogger("onward")

WARM_CALLS = 2  # whose backward runs before the recording
MOST_RECORDINGS = 3  # of a program: where parameters move all the time, it is not worth it


class Pool(Protocol):
    """Records functions (`GraphPool`)."""

    def record_sequence(
        self, functions: Sequence[Callable[[dict[str, Any]], Any]], values: Mapping[str, Any]
    ) -> list[tuple[Any, Any]]: ...

    def stream(self) -> int | None: ...


@dataclass(frozen=True)
class RunNames:
    """The names of a program's inputs and outputs."""

    inputs: Sequence[str]  # of the forward
    outputs: Sequence[str]
    given: Collection[str]  # inputs whose memory differs from call to call
    results: Collection[str]  # outputs that the caller gets
    cotangents: Mapping[str, str]  # output -> the input of the backward that is its cotangent


class RecordedRuns:
    """Chooses the functions of each call: the program's own, or their recordings."""

    def __init__(self, runs: Runs, names: RunNames, pool: Pool) -> None:
        self._names, self._pool = names, pool
        *others, last = runs.segments
        self._backward = _Counted(last.run)
        self._plain = Runs(runs.forward, (*others, replace(last, run=self._backward)))
        self._recordings = 0
        self._recording: _Recording | None = None
        self._last: Callable[[], Runs | None] = lambda: None  # the last call that was replayed
        read = dict.fromkeys([*names.inputs, *(n for s in runs.segments for n in s.inputs)])
        made = {*names.outputs, *names.cotangents.values(), *(n for s in others for n in s.outputs)}
        self._read = [name for name in read if name not in made and name not in names.given]

    @property
    def is_recorded(self) -> bool:
        return self._recording is not None

    def choose(self, values: Mapping[str, Tensor]) -> Runs:
        """The functions to run a call with; `values` are the inputs of the forward."""
        if self._backward.calls < WARM_CALLS or self._is_pending() or _must_run_unrecorded():
            return self._plain
        here = (self._pool.stream(), threading.get_ident())
        if here[0] is None:  # somebody else is recording
            return self._plain
        places = _places(values[name] for name in self._read)
        found = self._recording
        if found is None or found.places != places:
            found = self._recording = self._record(values, places, here)
        if found is None or found.here != here:
            return self._plain
        runs = Runs(found.forward, found.segments)
        self._last = weakref.ref(runs)
        return runs

    def _is_pending(self) -> bool:
        """Whether the backward of the last replayed call may still run."""
        last = self._last()
        return last is not None and not last.is_done

    def _record(self, values: Mapping[str, Tensor], places: Any, here: Any) -> _Recording | None:
        if self._recordings >= MOST_RECORDINGS:
            return None
        self._recordings += 1
        self._recording = None  # its memory is needed
        try:
            with torch.no_grad():
                return _Recording(self._plain, self._names, values, self._pool, places, here)
        except Exception as error:  # torch raises several, and so do kernels
            log.info(
                "a module's calls cannot be recorded as CUDA graphs, they run as they are: %s",
                first_line(error),
            )
            self._recordings = MOST_RECORDINGS
            return None


class _Counted:
    """A function that counts its calls."""

    def __init__(self, run: Run) -> None:
        self._run, self.calls = run, 0

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.calls += 1
        return self._run(tensors)


class _Recording:
    """The graphs of a forward and of its backward's segments, and the memory that they share.

    `places` is where the parameters are, `here` the stream and the thread of the recording.
    """

    def __init__(
        self,
        runs: Runs,
        names: RunNames,
        values: Mapping[str, Tensor],
        pool: Pool,
        places: Any,
        here: Any,
    ) -> None:
        if len({tensor.device for tensor in values.values()}) > 1:
            # a kernel is launched with the number in a CPU's scalar, which a graph would keep
            raise ValueError("its tensors are on several devices")
        self.places, self.here = places, here
        given = {name: _copy(values[name]) for name in names.given if name in values}
        held = {**values, **given}
        warm = _call(runs.forward, names.inputs, names.outputs, held)
        cotangents = {of: torch.ones_like(warm[name]) for name, of in names.cotangents.items()}
        warm |= cotangents
        for segment in runs.segments:  # with these buffers, they may have to be compiled again
            warm |= _call(segment.run, segment.inputs, segment.outputs, {**held, **warm})
        del warm
        results = [name for name in names.outputs if name in names.results]
        functions = [_Function(runs.forward, names.inputs, names.outputs, results)]
        for segment in runs.segments:
            made = set(segment.gradients.values())
            copied = [name for name in segment.outputs if name in made]
            functions.append(_Function(segment.run, segment.inputs, segment.outputs, copied))
        recorded = pool.record_sequence(functions, held | cotangents)
        later = cotangents | {n: given[n] for n in given.keys() - set(names.inputs)}
        self.forward, *backward = [
            function.replaying(graph, made, given if function is functions[0] else later)
            for function, (graph, made) in zip(functions, recorded)
        ]
        self.segments = tuple(replace(s, run=run) for s, run in zip(runs.segments, backward))


_Results = tuple[list[Tensor], PackedResults]  # all outputs, and those that are copied


@dataclass(frozen=True)
class _Function:
    """A function with the names of its inputs and outputs; the `copied` outputs leave the graph."""

    run: Run
    inputs: Sequence[str]
    outputs: Sequence[str]
    copied: Sequence[str]

    def __call__(self, values: dict[str, Tensor]) -> _Results:
        made = _call(self.run, self.inputs, self.outputs, values)
        values |= made
        return list(made.values()), PackedResults([made[name] for name in self.copied])

    def replaying(self, graph: Any, results: _Results, given: Mapping[str, Tensor]) -> Run:
        """The function that replays its graph; `given` are the buffers that it fills before."""
        used = [(i, given[name]) for i, name in enumerate(self.inputs) if name in given]
        positions, buffers = [i for i, _ in used], [buffer for _, buffer in used]
        places = [self.outputs.index(name) for name in self.copied]
        outputs, packed = results

        def replay(tensors: Sequence[Tensor]) -> list[Tensor]:
            with torch.no_grad():
                if buffers:
                    torch._foreach_copy_(buffers, [tensors[i] for i in positions])
                graph.replay()
                found = list(outputs)
                for i, tensor in zip(places, packed.copy()):
                    found[i] = tensor
            return found

        return replay


def _call(
    run: Run, inputs: Sequence[str], outputs: Sequence[str], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return dict(zip(outputs, run([values[name] for name in inputs])))


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides, where that is possible."""
    copy = torch.empty_like(tensor, requires_grad=False)
    return copy.copy_(tensor)


def _places(tensors: Iterable[Tensor]) -> Any:
    """Where tensors are in memory, and how."""
    held = list(tensors)
    return list(map(Tensor.data_ptr, held)), list(map(Tensor.stride, held))


def _must_run_unrecorded() -> bool:
    """Whether a call cannot be replayed.

    In distributed training, gradients are sent while the backward runs. Checkpointing and
    offloading give the backward other saved values than those in the graphs' memory.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
