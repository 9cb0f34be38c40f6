"""Report the memory of a run's step before anything runs."""

from __future__ import annotations

from typing import Any

from onward.graph.files import Source
from onward.programs.memory.memory_report import MemoryReport, memory_report
from onward.providers.choose import INDUCTOR, TORCH
from onward.providers.provider_text import read_provider
from onward.runner.activation_memory import first_sizes, with_memory
from onward.runner.automatic import resolve_automatic
from onward.runner.config import TrainConfig
from onward.runner.plan.make_plan import make_plan
from onward.sessions.training.training_program import compile_training


def plan_run_memory(
    config: TrainConfig, model: Source, data: Any = None, validation: Any = None
) -> MemoryReport:
    """The memory of a step of a run that is not started."""
    config = resolve_automatic(config, {}, model, data, validation)
    plan = make_plan(config, model, data, validation)
    options = with_memory(plan, config)
    provider = read_provider(config.provider or "cpu")  # onnxruntime is the default
    given = (plan.adapted.model, plan.loss, plan.optimizer, options)
    program = compile_training(*given, providers=[provider])
    name = provider if isinstance(provider, str) else provider[0]
    return memory_report(program, first_sizes(plan), inlined=name not in (TORCH, INDUCTOR))
