"""Onward's errors for exceptions of onnxruntime."""

from __future__ import annotations

import pytest

from onward.errors import MemoryLimitExceeded, NodeFailed, ProviderError
from onward.providers.ort.session import typed_error

FAILED = "Non-zero status code returned while running Expand node. Name:'' Status Message: "


def test_failed_operator_is_named() -> None:
    error = typed_error(RuntimeError(FAILED + "invalid expand shape"), None)
    assert isinstance(error, NodeFailed) and error.op_type == "Expand"


@pytest.mark.parametrize(
    "text", ["Failed to allocate memory for requested buffer of size 4", "std::bad_alloc"]
)
def test_out_of_memory_is_not_a_failed_node(text: str) -> None:
    error = typed_error(RuntimeError(FAILED + text), None)
    assert isinstance(error, ProviderError) and not isinstance(error, NodeFailed)


def test_full_arena_is_a_memory_limit_error() -> None:
    error = typed_error(RuntimeError("Available memory of 10 is smaller than requested 20"), 10)
    assert isinstance(error, MemoryLimitExceeded)
    assert "needs more than its memory limit of 10 bytes" in str(error)
