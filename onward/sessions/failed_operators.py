"""Whether another provider may run an operator that onnxruntime loads but fails to run."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from onward.errors import OnwardError
from onward.providers.choose import ProviderChoice
from onward.providers.options import SessionOptions
from onward.sessions.model_reader import ModelReader
from onward.sessions.open_plan import open_plan

# written out in numpy loops: on a large tensor, torch loads faster than these run
_SLOW_BY_DEFINITION = (
    *("Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv"),
    *("GRU", "LSTM", "QLinearConv", "Resize", "RNN"),
)


def choose_without(
    operator: str, choice: ProviderChoice, options: SessionOptions
) -> ProviderChoice | None:
    """The choice in which onnxruntime does not run the operator; None if no other provider may."""
    failed = choice.failed | {operator}
    if (
        not choice.may_move
        or options.isolated  # the session of its process has tried
        or failed == choice.failed
        or options.disable_fallback
    ):
        return None
    return replace(choice, failed=failed)


def is_defined(
    operator: str,
    choice: ProviderChoice,
    reader: ModelReader,
    options: SessionOptions,
    call: tuple[Any, Any, Any],
) -> bool:
    """Whether ONNX's definition of the operator runs: else the feeds or the model are wrong.

    The reference provider needs no loading, torch takes seconds. True if that is unknown.
    `call` has the arguments of a run: names, feeds and options.
    """
    if operator in _SLOW_BY_DEFINITION:
        return True
    quiet = copy.copy(options)
    quiet.log_severity_level = 4  # the warning has been given
    quiet.enable_profiling, quiet.optimized_model_filepath = False, ""
    try:
        plan = open_plan(reader, choice.with_reference_fallback(), quiet)
    except OnwardError:
        return True
    try:
        plan.run(*call)
    except OnwardError:
        return False
    return True
