"""Methods that only onnxruntime's own session has."""

from __future__ import annotations

from typing import Any

from onward.errors import OptionAttributeError
from onward.sessions.plan import Plan

NATIVE_METHODS = (
    "create_ortvalue_from_shape_and_type",
    "get_input_epdevices",
    "get_input_memory_infos",
    "get_output_memory_infos",
    "get_provider_graph_assignment_info",
    "get_tuning_results",
    "release_captured_graph",
    "run_with_ortvaluevector",
    "set_ep_dynamic_options",
    "set_tuning_results",
)


def native_method(plan: Plan, name: str) -> Any:
    """A method of onnxruntime's own session, if that runs the whole model."""
    if plan.native is None:
        raise OptionAttributeError(
            f"{name} needs onnxruntime's own session, which does not run all of this model\n"
            "list its providers: providers=['CPUExecutionProvider']"
        )
    return getattr(plan.native, name)
