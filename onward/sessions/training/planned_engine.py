"""The engine that the memory of a program is planned for, from the providers of a session."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from onward.lazy import LazyModule
from onward.providers.choose import (
    INDUCTOR,
    TORCH,
    Asked,
    available,
    choose,
    mentions_auto,
    named_options,
)
from onward.providers.options import SessionOptions
from onward.providers.ort import processors

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.programs.memory import engine_memory
    from onward.programs.memory.engine_memory import FindEngineMemory
    from onward.providers.ort import processor_probe
    from onward.providers.ort.training import lowering
    from onward.providers.torch.training import kept_values
else:  # they build graphs; torch is loaded when it is asked for
    engine_memory = LazyModule("onward.programs.memory.engine_memory")
    processor_probe = LazyModule("onward.providers.ort.processor_probe")
    lowering = LazyModule("onward.providers.ort.training.lowering")
    kept_values = LazyModule("onward.providers.torch.training.kept_values")


CPU = "CPUExecutionProvider"


def planned_engine(
    providers: Asked, options: SessionOptions | None = None
) -> FindEngineMemory | None:
    """What the first provider keeps in memory of a train graph; None: every value."""
    if not providers or mentions_auto(providers):
        return None
    name, given = next(iter(named_options(providers).items()))
    if name == CPU:
        return lambda train: engine_memory.EngineMemory(lower=_lower_for_onnxruntime)
    if name not in (TORCH, INDUCTOR) or name not in available():
        return None
    chosen = SessionOptions() if options is None else options
    provider = choose([(name, given)], None, chosen).engines(chosen)[0].provider
    return functools.partial(kept_values.find_kept_values, provider=provider)


def _lower_for_onnxruntime(train: ir.Model) -> ir.Model:
    """A train graph as onnxruntime runs it on this machine's processor, in place."""
    processor = processors.find_processor(processor_probe.processor_probe())
    lowered: ir.Model = lowering.lower_gradient_graph(train, processor)
    return lowered
