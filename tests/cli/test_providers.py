"""onward providers: those of this machine, and what the others need."""

from __future__ import annotations

import json

from onward.cli.arguments import complete_providers
from onward.providers.choose import available, full_name
from tests.cli.conftest import Call


def test_providers_are_listed_with_versions(call: Call) -> None:
    called = call("providers")
    for word in ("CPUExecutionProvider", "cpu", "onnxruntime 1.", "ReferenceExecutionProvider"):
        assert word in called.out
    assert "not on this machine" in called.out


def test_json_has_what_missing_providers_need(call: Call) -> None:
    rows = {row["name"]: row for row in json.loads(call("providers", "--json").out)}
    assert [name for name, row in rows.items() if row["available"]] == available()
    if not rows["CUDAExecutionProvider"]["available"]:
        assert "onnxruntime-gpu" in rows["CUDAExecutionProvider"]["needs"]
    assert all(row["available"] or row["needs"] for row in rows.values())


def test_short_name_finds_every_provider(call: Call) -> None:
    for row in json.loads(call("providers", "--json").out):
        assert full_name(row["short_name"]) == row["name"]
    assert "cpu" in complete_providers("c")
