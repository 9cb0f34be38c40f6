"""onnxruntime's errors as ours."""

from __future__ import annotations

import pytest

from onward.errors import MemoryLimitExceeded, NodeFailed, ProviderError
from onward.providers.ort.session import explain

FAILED = "Non-zero status code returned while running Expand node. Name:'' Status Message: "


def test_a_failed_operator_is_named() -> None:
    error = explain(RuntimeError(FAILED + "invalid expand shape"), None)
    assert isinstance(error, NodeFailed) and error.op_type == "Expand"


@pytest.mark.parametrize(
    "text", ["Failed to allocate memory for requested buffer of size 4", "std::bad_alloc"]
)
def test_no_other_provider_is_asked_for_memory_that_is_not_there(text: str) -> None:
    error = explain(RuntimeError(FAILED + text), None)
    assert isinstance(error, ProviderError) and not isinstance(error, NodeFailed)


def test_a_full_arena_is_the_memory_limit() -> None:
    error = explain(RuntimeError("Available memory of 10 is smaller than requested 20"), 10)
    assert isinstance(error, MemoryLimitExceeded)
    assert "needs more than its memory limit of 10 bytes" in str(error)
