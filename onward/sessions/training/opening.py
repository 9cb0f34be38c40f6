"""Opening a program, and its graphs in as few sessions of an engine as can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onward.errors import FeedError, OnwardError, OptionError
from onward.lazy import LazyModule
from onward.providers.choose import Asked, choose
from onward.providers.options import SessionOptions
from onward.providers.ort.bound import CPU, BoundSession, taking_turns
from onward.providers.ort.denormals import without
from onward.sessions.inference import InferenceSession
from onward.sessions.training.engine import Bound, Engine, Loose, Phase
from onward.sessions.training.probe import is_sound
from onward.sessions.training.program import TrainingProgram, is_program, load_program

if TYPE_CHECKING:
    from onward.sessions.training import compile as compiling
    from onward.sessions.training.options import TrainingOptions
else:  # what makes graphs; a saved program needs none of it
    compiling = LazyModule("onward.sessions.training.compile")


def to_program(
    model: Any, loss: Any, optimizer: Any, options: TrainingOptions | Mapping[str, Any] | None
) -> TrainingProgram:
    """The program that is given, or that is compiled from a model."""
    given = load_program(model) if is_program(model) else model
    if not isinstance(given, TrainingProgram):
        made: TrainingProgram = compiling.compile_training(given, loss, optimizer, options)
        return made
    if loss is not None or optimizer is not None or options is not None:
        raise OptionError(
            "a compiled program has its loss, optimizer and options\n"
            "give them to compile_training, or give the model here"
        )
    return given


class Opening:
    """One program, with the options and providers that all of its graphs are opened with."""

    def __init__(self, program: TrainingProgram, options: SessionOptions, providers: Asked) -> None:
        self._program, self._options, self._providers = program, options, providers
        self._quick = without(options)  # for sessions of ours, which put the thread's settings back

    def any(self, graph: bytes) -> Engine:
        """onnxruntime bound to memory where it is the one asked for and has every operator."""
        choice = choose(self._providers, None, self._options)
        if choice.leading_ort:
            try:
                return Bound(BoundSession(graph, taking_turns(self._quick), choice.leading_ort))
            except FeedError:
                raise
            except OnwardError:
                if choice.named and len(choice.leading_ort) == len(choice.listed):
                    raise
        return Loose(InferenceSession(graph, self._options, self._providers))

    def update(self, graph: bytes) -> Engine | None:
        """An update over rows; None where its memory would not be the one that is bound."""
        session = self._bound(graph, taking_turns(self._quick))
        return None if session is None else Bound(session)

    def one_run(self) -> Engine | None:
        """Gradients and updates in one run; None where that cannot be."""
        if not self._program.settings["one_run"]:
            return None
        options = self._quick
        if options.native is None and not self._program.settings["plans_memory"]:
            # a plan is held from the first node to the last, beside what the update needs
            options = replace(options, enable_mem_pattern=False)
        session = self._bound(self._program.step, options)
        return None if session is None else Bound(session)

    def branches(self) -> tuple[Engine, Engine] | None:
        """Gradients, and updates, as two runs of one session; None where that cannot be."""
        whole = self._program.settings["one_run"]
        session = None if whole else self._bound(self._program.step, self._quick)
        if session is None:
            return None
        train = Phase(session, True)
        return train, Phase(session.twin(), False, train)

    def _bound(self, graph: bytes | None, options: SessionOptions) -> BoundSession | None:
        """On the CPU provider alone, in this very memory: others have copies of their own."""
        choice = choose(self._providers, None, options)
        is_alone = len(choice.leading_ort) == (len(choice.listed) if choice.named else 1)
        if graph is None or not is_alone or [name for name, _ in choice.leading_ort] != _CPU:
            return None
        if not is_sound(self._program.probe):
            return None
        try:
            return BoundSession(graph, options, choice.leading_ort)
        except OnwardError:  # it says why when another way is tried
            return None


_CPU = [name for name, _ in CPU]
