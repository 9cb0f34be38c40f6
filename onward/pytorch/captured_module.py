"""CapturedModule: the programs of one nn.Module, found by the call; PyTorch where there is none."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from onward.errors import OnwardError
from onward.message_text import first_line
from onward.providers.torch.training.graph_pool import GraphPool
from onward.pytorch.call_state import are_plain, are_sharded, trace_state
from onward.pytorch.call_structure import flatten
from onward.pytorch.call_times import program_seconds, torch_seconds
from onward.pytorch.capture import capture, default_axes
from onward.pytorch.capture_compiler import compile_capture, device_of
from onward.pytorch.captured_model import Capture
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.changing_items import ChangingItems, Initializes, tensor_kind
from onward.pytorch.engines import raced_providers
from onward.pytorch.fallback import (
    CannotCapture,
    Checkpointed,
    Differentiates,
    Report,
    Sharded,
    Slower,
    report_fallbacks,
)
from onward.pytorch.fastest_program import fastest_program
from onward.pytorch.layout_reads import has_layout
from onward.pytorch.module_contents import ModuleContents
from onward.pytorch.module_hooks import is_collected, refuse_hooks
from onward.pytorch.module_options import ModuleOptions
from onward.pytorch.recomputation import around_recomputation
from onward.pytorch.recorded_runs import Pool
from onward.pytorch.rewrites import rewrite_capture
from onward.pytorch.tensor_aliases import shares_memory

Tensor = torch.Tensor
# torch.export keeps its state in globals, and puts tensors without data into the module it traces:
# calls of other threads read a module's tensors before or after that
ONE_CAPTURE = threading.RLock()
_INITIALIZATIONS = 8  # calls in a row, each of other sizes, such as those that fill a cache
_SHARDED = "sharded"  # the key of calls while parameters are sharded
_shape = attrgetter("shape")


class CapturedModule:
    """Runs a module's forward on captured graphs; `path` is its name in the wrapped module.

    Programs are kept by what the trace depends on: the structure of the arguments, the types and
    devices of tensors, which need gradients, the mode of every submodule, autocast. In one such
    group a program takes all sizes that its guards accept.
    """

    def __init__(
        self,
        module: nn.Module,
        options: ModuleOptions,
        path: str = "",
        report: Report | None = None,
        changing: ChangingItems | None = None,
    ) -> None:
        self.module, self.path, self._options = module, path, options
        self._report = report or report_fallbacks(options.fallback)
        self.last: CapturedProgram | None = None  # the program of the last call; None: PyTorch ran
        self._forward = module.forward
        self._contents = ModuleContents(module)
        self.groups: dict[Any, list[CapturedProgram]] = {}
        self.reasons: dict[Any, CannotCapture] = {}  # groups that PyTorch runs, and why
        # attributes and items that calls have changed, those of the parts as well
        self._changing: ChangingItems = {} if changing is None else changing
        # sizes of calls that changed some in PyTorch, by group, since its last capture
        self._initialized: dict[Any, list[Any]] = {}
        self._attempts: Counter[Any] = Counter()  # captures of each kind of call
        self._parts: list[CapturedModule] | None = None

    @property
    def parts(self) -> list[CapturedModule]:
        """The submodules that are captured separately, because the module itself cannot be."""
        return list(self._parts or ())

    @property
    def programs(self) -> list[CapturedProgram]:
        """All programs, those of submodules included."""
        own = [program for group in self.groups.values() for program in group]
        return own + [program for part in self._parts or () for program in part.programs]

    @property
    def fallbacks(self) -> dict[str, str]:
        """The submodules that PyTorch runs, and why."""
        found = {}
        for reason in self.reasons.values():
            found[self.path] = str(reason)
        for part in self._parts or ():
            found |= part.fallbacks
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ONE_CAPTURE:
            run = self._choose(args, kwargs)
        return run()

    def _choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
        """What runs a call: a program, which is captured if there is none, or PyTorch."""
        self.last = None
        self._find_forward()
        call, structure = flatten((args, kwargs))
        if not self._contents.is_current():
            self._contents = ModuleContents(self.module)
            self.forget()  # another submodule may compute something else
        tensors = self._contents.tensors()
        held = [*tensors.values(), *call]
        in_torch = partial(self._run_in_torch, args, kwargs)
        if not are_plain(held):  # DTensors, fake tensors
            if not are_plain(call) or not are_sharded(tensors.values()):
                return partial(self._forward, *args, **kwargs)
            if _SHARDED not in self.reasons:
                self._fall_back(_SHARDED, Sharded("parameters of its submodules are sharded"))
            return in_torch
        if held and held[0].device.type == "meta":
            return partial(self._forward, *args, **kwargs)
        modes = (self._forward, self._contents.modes(), is_collected())
        state = (*modes, *trace_state(tensors.values(), call))
        key = (structure.key(), *state)
        program = self._find_program(key, tensors, call)
        if program is not None:
            if _changes_shared(program.capture, tensors, call):
                return in_torch
            return partial(self._run, program, tensors, call)
        kind = (structure.kind(), *state)
        if key in self.reasons or self._is_crowded(kind):
            return in_torch
        try:
            program = self._capture(self.groups.get(key, ()), args, kwargs, call, tensors)
        except CannotCapture as reason:
            if isinstance(reason, Initializes):
                self._changing.update({item.key: item for item in reason.items})
                done, shapes = self._initialized.setdefault(key, []), list(map(_shape, call))
                if shapes not in done and len(done) < _INITIALIZATIONS:
                    done.append(shapes)
                    self._attempts[kind] += 1
                    return partial(self._forward, *args, **kwargs)
            self._fall_back(key, reason)
            return partial(self._run_first_in_torch, key, kind, args, kwargs)
        self._initialized.pop(key, None)
        self._attempts[kind] += 1
        self.groups.setdefault(key, []).append(program)
        if _changes_shared(program.capture, tensors, call):
            return in_torch
        return partial(self._run, program, tensors, call)

    def _run_first_in_torch(
        self, key: Any, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a call that could not be captured, and forget the reason if it is wrong itself."""
        try:
            found = self._run_in_torch(args, kwargs)
        except BaseException:  # the next one may be captured
            self.reasons.pop(key, None)
            raise
        self._attempts[kind] += 1
        return found

    def _find_program(
        self, key: Any, tensors: Mapping[str, Tensor], call: Sequence[Tensor]
    ) -> CapturedProgram | None:
        """The program of this kind of call that takes these sizes and layouts."""
        for program in self.groups.get(key, ()):
            if program.guards.accept(call) and self._fits(program.capture, tensors, call):
                return program
        return None

    def _fits(self, found: Capture, tensors: Mapping[str, Tensor], call: Sequence[Tensor]) -> bool:
        """Whether all that a capture takes for constant, except for sizes, is as it was."""
        kinds = found.attributes.items()
        if not all(tensor_kind(tensors[path]) == kind for path, kind in kinds):
            return False
        if not (found.hidden.are_current() and all(each.is_current() for each in found.values)):
            return False
        reads = found.layout_reads
        return found.items.are_current(self._changing) and (
            not reads or has_layout(reads, (*tensors.values(), *call))
        )

    def _is_crowded(self, kind: Any) -> bool:
        """Whether calls that differ only in sizes and constants were captured often enough."""
        done = self._attempts[kind]
        if kind not in self.reasons and done >= self._options.max_programs:
            text = f"it was captured for {done} different sizes and constants already"
            self._fall_back(kind, CannotCapture(f"{text}; numbers that change should be tensors"))
        return kind in self.reasons

    def _run(
        self, program: CapturedProgram, tensors: Mapping[str, Tensor], call: Sequence[Tensor]
    ) -> Any:
        self.last = program
        return program.run(tensors, call)

    def forget(self) -> None:
        """Forget all programs: the next call captures again."""
        self.groups, self.reasons, self._parts, self.last = {}, {}, None, None
        self._attempts.clear()
        self._initialized.clear()

    # -- capture -------------------------------------------------------------------------------

    def _capture(
        self,
        group: Sequence[CapturedProgram],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Sequence[Tensor],
        tensors: Mapping[str, Tensor],
    ) -> CapturedProgram:
        options = self._options
        refuse_hooks(self.module)
        try:
            captures = [program.capture for program in group]
            known = next((each for each in captures if each.guards.accept(call)), None)
            if known is None or not self._fits(known, tensors, call):
                axes = [_changed_axes(group, i, tensor) for i, tensor in enumerate(call)]
                found = capture(self.module, args, kwargs, axes, changing=self._changing)
                known = rewrite_capture(found, options.rewrites).packed()
            # the first sizes get a program of their own, all others share one
            is_fixed = not group

            def compile_for(provider: str) -> CapturedProgram:
                chosen = replace(options, provider=provider)
                return compile_capture(
                    *(known, call, tensors, chosen, self._graph_pool), is_fixed=is_fixed
                )

            if options.provider == "fastest":
                tried = raced_providers(device_of(tensors, call))
                program = fastest_program(
                    [partial(compile_for, each) for each in tried],
                    lambda each: program_seconds(each, tensors, call),
                    lambda: torch_seconds(self.module, tensors, args, kwargs),
                )
            else:
                program = compile_for(options.provider)
            gc.collect()  # traces are large and full of cycles
        except CannotCapture:
            raise
        except OnwardError as error:
            raise CannotCapture(first_line(error)) from error
        if options.save_onnx is not None:
            number = len(self.programs)
            prefix = f"{options.onnx_prefix}{self.path}{'_' * bool(self.path)}{number}_"
            program.save_graphs(options.save_onnx, prefix)
        return program

    def _graph_pool(self, device: torch.device) -> Pool | None:
        """Where calls are recorded as CUDA graphs.

        Those of submodules are not: what each of them saves would stay in memory, although the
        module may have asked to compute it again.
        """
        records = device.type == "cuda" and self._options.cuda_graphs and not self.path
        return GraphPool(device) if records else None

    # -- PyTorch -------------------------------------------------------------------------------

    def _fall_back(self, key: Any, reason: CannotCapture) -> None:
        self._report(self.path, type(self.module).__name__, reason)
        self.reasons[key] = reason
        if self._parts is None and not isinstance(reason, (Differentiates, Slower)):
            start = f"{self.path}." if self.path else ""
            self._parts = [
                CapturedModule(child, self._options, f"{start}{name}", self._report, self._changing)
                for name, child in _capturable_children(self.module)
            ]

    def _run_in_torch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the module's own forward; submodules that can be captured run on their graphs."""
        with self._parts_in_place():
            return self._forward(*args, **kwargs)

    def _find_forward(self) -> None:
        """Take the forward that the module has now: users may replace it at any time."""
        if self.module.forward is not self:
            self._forward = self.module.forward

    @contextmanager
    def _parts_in_place(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts or ():
                stack.enter_context(part.replacing_forward())
            if any(isinstance(reason, Checkpointed) for reason in self.reasons.values()):
                stack.enter_context(around_recomputation(self._parts_in_place))
            yield

    @contextmanager
    def replacing_forward(self) -> Iterator[None]:
        """Let the module's calls run here."""
        attributes = self.module.__dict__
        before = attributes.get("forward")
        self._find_forward()
        attributes["forward"] = self
        try:
            yield
        finally:
            if before is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = before


def _capturable_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The children that are worth a program: with parameters and several operations."""
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            for inner, grandchild in _capturable_children(child):
                yield f"{name}.{inner}", grandchild
        elif any(True for _ in child.children()) and any(True for _ in child.parameters()):
            yield name, child


def _changes_shared(found: Capture, tensors: Mapping[str, Tensor], call: Sequence[Tensor]) -> bool:
    """Whether a forward changes an argument in place that shares memory with another tensor."""
    changed = [call[target] for target in found.changes.values() if isinstance(target, int)]
    if not changed:
        return False
    return shares_memory(changed, (*call, *(tensors[of] for of in found.tensors.values())))


def _changed_axes(group: Sequence[CapturedProgram], i: int, tensor: Tensor) -> list[int]:
    """The axes whose size differs between calls, in addition to the usual ones."""
    axes = set(default_axes(tensor))
    for program in group:
        shape = program.capture.guards.shapes[i]
        axes |= {axis for axis, size in enumerate(shape) if size != tensor.shape[axis]}
    return sorted(axes)
