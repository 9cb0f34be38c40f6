"""Plan: how a session's model runs. All plans have these methods, under onnxruntime's names.

| plan | runs the model |
|---|---|
| `OrtPlan` | in one onnxruntime session |
| `PartitionedPlan` | in parts, each on its provider |
| `IsolatedPlan` | in a separate process |
| `AutoPlan` | by the plan that was measured to be the fastest |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Plan(Protocol):
    """An opened model, ready to run."""

    @property
    def native(self) -> Any:
        """onnxruntime's own session if it runs the whole model; else None."""

    def get_inputs(self) -> Sequence[Any]: ...

    def get_outputs(self) -> Sequence[Any]: ...

    def get_overridable_initializers(self) -> Sequence[Any]: ...

    def get_modelmeta(self) -> Any: ...

    def get_providers(self) -> list[str]: ...

    def get_provider_options(self) -> Mapping[str, dict[str, str]]: ...

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]: ...

    def run_async(
        self, names: Any, feeds: Any, callback: Callable[..., None], user_data: Any, options: Any
    ) -> None: ...

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]: ...

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> Sequence[Any]: ...

    def io_binding(self) -> Any: ...

    def run_with_iobinding(self, binding: Any, run_options: Any) -> None: ...

    def end_profiling(self) -> str: ...

    def get_profiling_start_time_ns(self) -> int: ...

    def ensure_ready(self) -> None:
        """Do what the next run would wait for, before its time limit starts."""

    def close(self) -> None:
        """Release engine sessions, processes and threads."""
