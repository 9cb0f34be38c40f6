"""Facts about a model that need no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onward
from onward.errors import InvalidModel
from onward.measure import inspection as inspection
from onward.measure.inspection import model_facts
from tests.models import mlp


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onward.save(mlp(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_facts_are_plain_values(path: Path) -> None:
    facts = model_facts(mlp(), path, {"batch": 2})
    assert json.loads(json.dumps(facts)) == facts
    assert facts["inputs"] == [
        {"name": "x", "type": "tensor(float)", "shape": ["batch", 4], "has_default": False}
    ]
    assert facts["cost"]["sizes"] == {"batch": 2} and facts["cost"]["flops"] > 0
    assert facts["memory"]["weights"] == 36 and not facts["warnings"]


def test_unknown_facts_are_warnings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise InvalidModel("oh\nno")

    monkeypatch.setattr(inspection, "estimate_memory", broken)
    facts = model_facts(mlp(), path, {})
    assert facts["memory"] is None and facts["warnings"] == [
        "the memory is not known: InvalidModel: oh"
    ]
    monkeypatch.setattr(inspection, "model_costs", broken)
    assert model_facts(mlp(), path, {})["cost"] is None
