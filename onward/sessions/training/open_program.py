"""Open a training program on its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onward.errors import FeedError, OnwardError, OptionError
from onward.lazy import LazyModule
from onward.providers.choose import INDUCTOR, TORCH, Asked, ProviderChoice, choose
from onward.providers.low_precision import check_float8, check_onnxruntime, check_processor
from onward.providers.options import ExecutionOrder, SessionOptions
from onward.providers.ort.bound_session import CPU, BoundSession, stop_spinning_after_runs
from onward.providers.ort.denormals import flush_denormals
from onward.providers.ort.training.bound_graph import BoundGraph, OrtGraph
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.ort.training.fused_step_probe import is_sound
from onward.providers.ort.training.lowered import LoweredProgram, is_saved_program
from onward.sessions.inference import InferenceSession
from onward.sessions.training.training_program import (
    TrainingProgram,
    compile_training,
    load_program,
)

if TYPE_CHECKING:
    from onward.programs.bucket_parts import Sharding
    from onward.programs.training_options import TrainingOptions
    from onward.providers.ort.training import part_store
    from onward.providers.provider import Provider, TrainingExecutable
    from onward.providers.torch.training import executable as torch_training
else:  # torch is loaded when it is asked for
    part_store = LazyModule("onward.providers.ort.training.part_store")
    torch_training = LazyModule("onward.providers.torch.training.executable")

Array = np.ndarray[Any, Any]

_AT_ONCE = 1 << 20  # elements that an update of sharded vectors takes: its results need memory


def to_program(
    model: Any,
    loss: Any,
    optimizer: Any,
    options: TrainingOptions | Mapping[str, Any] | None,
    providers: Asked = None,
) -> TrainingProgram:
    """The given program, or the one compiled from a model, its memory planned for its provider."""
    given = load_program(model) if is_saved_program(model) else model
    if not isinstance(given, TrainingProgram):
        planned = None if _memory_of(options) is None else providers
        return compile_training(given, loss, optimizer, options, providers=planned)
    if loss is not None or optimizer is not None or options is not None:
        raise OptionError(
            "a compiled program has its loss, optimizer and options\n"
            "give them to compile_training, or give the model here"
        )
    return given


def _memory_of(options: TrainingOptions | Mapping[str, Any] | None) -> Any:
    """The Memory of options that are not checked yet."""
    if isinstance(options, Mapping):
        return options.get("memory")
    return getattr(options, "memory", None)


class OpenedTraining(NamedTuple):
    """A program on its engine, and the providers that run it, the preferred one first."""

    engine: TrainingExecutable
    providers: list[str]


def open_training(
    program: TrainingProgram,
    options: SessionOptions,
    providers: Asked,
    sharding: Sharding | None = None,
) -> OpenedTraining:
    """Open a program in torch if that is the first provider, otherwise through onnxruntime.

    `sharding`: which parts of the vectors this process of many holds; None: all.
    """
    choice = choose(providers, None, options)
    in_torch = _open_in_torch(program, options, choice, sharding)
    if in_torch is not None:
        return OpenedTraining(in_torch, [choice.listed[0][0]])
    settings = program.layout.settings
    if settings.products is not None and not settings.emulated:
        check_float8(None)
    if settings.precision is not None and not settings.emulated:
        check_onnxruntime(settings.precision, next((n for n, _ in choice.leading_ort), CPU[0][0]))
    on_cpu = [name for name, _ in choice.leading_ort] == _CPU
    lowered = program.lowered_here if on_cpu else program.lowered
    names = [name for name, _ in choice.leading_ort or (*choice.listed, *choice.fallback)]
    portable = {lowered.train: lambda: program.lowered.train}
    opener = ProgramGraphOpener(lowered, options, providers, portable)
    if sharding is None:
        return OpenedTraining(OrtTraining(lowered, opener), names)
    store = part_store.NumpyPartStore(lowered.layout, sharding)
    engine = OrtTraining(lowered, opener, store, at_once=_AT_ONCE)
    return OpenedTraining(engine, names)


def _open_in_torch(
    program: TrainingProgram,
    options: SessionOptions,
    choice: ProviderChoice,
    sharding: Sharding | None,
) -> TrainingExecutable | None:
    """The program in torch, if that is the first provider and has every operator; else None."""
    if not choice.named or program.neutral is None:
        return None
    if not choice.listed or choice.listed[0][0] not in (TORCH, INDUCTOR):
        return None
    provider = choice.engines(options)[0].provider
    settings = program.layout.settings
    if settings.products is not None and not settings.emulated:
        check_float8(getattr(provider, "capability", None))
    if settings.precision is not None and not settings.emulated and _is_on_processor(provider):
        check_processor(settings.precision)
    found: TrainingExecutable | None = torch_training.open_program(
        program.neutral, provider, sharding
    )
    return found


def _is_on_processor(provider: Provider) -> bool:
    return str(getattr(provider, "device", "")) == "cpu"


class ProgramGraphOpener:
    """Opens the graphs of a lowered program, with the options and providers of its session."""

    def __init__(
        self,
        program: LoweredProgram,
        options: SessionOptions,
        providers: Asked,
        portable: Mapping[bytes, Callable[[], bytes]],  # of graphs for one kind of processor
    ) -> None:
        self._program, self._options, self._providers = program, options, providers
        self._portable = portable
        self._quick = flush_denormals(options)  # our bound sessions restore the thread's settings

    def open(self, graph: bytes) -> BoundGraph:
        """A bound session if onnxruntime leads and has every operator; else one that copies."""
        choice = choose(self._providers, None, self._options)
        if choice.leading_ort:
            options = self._in_order(stop_spinning_after_runs(self._quick))
            try:
                return OrtGraph(BoundSession(graph, options, choice.leading_ort))
            except FeedError:
                raise
            except OnwardError:
                if choice.named and len(choice.leading_ort) == len(choice.listed):
                    raise
        if graph in self._portable:
            graph = self._portable[graph]()
        return CopyingGraph(InferenceSession(graph, self._options, self._providers))

    def open_update(self, graph: bytes) -> BoundGraph | None:
        """An update over adjacent rows; None if its outputs would not be the bound memory."""
        session = self._bound(graph, stop_spinning_after_runs(self._quick))
        return None if session is None else OrtGraph(session)

    def open_fused_step(self) -> BoundGraph | None:
        """Gradients and updates in one run; None if that is not possible."""
        options = self._in_order(self._quick)
        if options.native is None and not self._program.plans_memory:
            # its memory plan is held during the whole run, in addition to the update's memory
            options = replace(options, enable_mem_pattern=False)
        session = self._bound(self._program.step, options)
        return None if session is None else OrtGraph(session)

    def _in_order(self, options: SessionOptions) -> SessionOptions:
        """Options with which nodes run in the graph's order, if the program asks for it."""
        if options.native is not None or not self._program.keeps_order:
            return options
        # onnxruntime would keep the memory of a value for one of the same shape that comes later
        order = ExecutionOrder.PRIORITY_BASED
        return replace(
            options, execution_order=order, enable_mem_pattern=False, enable_mem_reuse=False
        )

    def _bound(self, graph: bytes | None, options: SessionOptions) -> BoundSession | None:
        """A session on only the CPU provider, bound in place: other providers copy."""
        choice = choose(self._providers, None, options)
        is_alone = len(choice.leading_ort) == (len(choice.listed) if choice.named else 1)
        if graph is None or not is_alone or [name for name, _ in choice.leading_ort] != _CPU:
            return None
        if not is_sound(self._program.probe):
            return None
        try:
            session = BoundSession(graph, options, choice.leading_ort)
        except OnwardError:  # the error is raised when another way is tried
            return None
        return session if session.is_in_place else None


_CPU = [name for name, _ in CPU]


class CopyingGraph:
    """A graph on any provider; results are copied to the arrays that outputs are bound to."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._read: dict[str, Array] = {}
        self._written: dict[str, Array] = {}

    def arguments(self) -> Sequence[Any]:
        return self._session.get_inputs()

    def results(self) -> Sequence[Any]:
        return self._session.get_outputs()

    def bind_input(self, name: str, array: Array) -> None:
        self._read[name] = array

    def bind_output(self, name: str, array: Array) -> None:
        self._written[name] = array

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        names = [*self._written, *wanted]
        results = self._session.run(names, self._read)
        for name, result in zip(names, results):
            if name in self._written:
                np.copyto(self._written[name], np.asarray(result))
        return [np.asarray(result) for result in results[len(self._written) :]]
