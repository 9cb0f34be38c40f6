"""Compile a capture for a call, by the first engine of the options that has all kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from onward.errors import InvalidModel, ProviderError
from onward.message_text import first_line
from onward.pytorch.captured_model import Capture
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.engines import engine_names, make_engine
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.module_options import ModuleOptions
from onward.pytorch.recorded_runs import Pool

Tensor = torch.Tensor


def compile_capture(
    found: Capture,
    call: Sequence[Tensor],
    tensors: Mapping[str, Tensor],
    options: ModuleOptions,
    graph_pool: Callable[[torch.device], Pool | None],
    *,
    is_fixed: bool,
) -> CapturedProgram:
    """The program of a capture for these tensors: of the call, and of the module by name."""
    wrt: list[str] = []
    if torch.is_grad_enabled():
        wrt = [name for name, of in found.tensors.items() if tensors[of].requires_grad]
        wrt += [name for name, i in found.inputs.items() if call[i].requires_grad]
    used = [tensors[of] for of in found.tensors.values()]
    used += [call[i] for i in found.inputs.values()]
    if any(map(torch.is_complex, used)):
        raise CannotCapture("it reads complex numbers, which a graph has as pairs")
    device = device_of(tensors, call)
    names = engine_names(options.provider, device)
    for name in names:
        engine = make_engine(name, device, options.threads)
        try:
            return CapturedProgram(
                *(found, engine, wrt, options.segments, call),
                is_fixed=is_fixed,
                pool=graph_pool(device),
            )
        except (InvalidModel, ProviderError) as error:  # it lacks a kernel
            if name == names[-1]:
                raise CannotCapture(first_line(error)) from error
    raise AssertionError("there is always an engine")


def device_of(tensors: Mapping[str, Tensor], call: Sequence[Tensor]) -> torch.device:
    """The device of a call: that of the module's first tensor, or of the call's."""
    held = [*tensors.values(), *call]
    return held[0].device if held else torch.device("cpu")
