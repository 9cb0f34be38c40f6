"""onward ops: its table, its filters and unknown names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.measure import operator_support
from tests.cli.conftest import Call, is_one_line

TWO = ("--provider", "cpu", "--provider", "reference")


@pytest.fixture(autouse=True)
def temporary_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_support, "cache_folder", lambda name: tmp_path / name)


def test_operators_are_listed_by_provider(call: Call) -> None:
    called = call("ops", *TWO)
    assert called.code == 0
    for word in ("Conv", "com.microsoft::FusedMatMul", "ai.onnx.ml::Scaler", "cpu", "operators"):
        assert word in called.out


def test_one_operator_is_shown_with_its_types(call: Call) -> None:
    called = call("ops", *TWO, "--op", "gemm")
    assert "1 operators" in called.out and "Gemm on cpu takes double, float" in called.out


def test_json_can_be_filtered(call: Call) -> None:
    rows = json.loads(call("ops", *TWO, "--json", "--domain", "com.microsoft").out)
    assert {row["domain"] for row in rows} == {"com.microsoft"}
    (gelu,) = (row for row in rows if row["name"] == "Gelu")
    assert gelu["runs"] == {"CPUExecutionProvider": True, "ReferenceExecutionProvider": False}


def test_unknown_names_are_one_line(call: Call) -> None:
    assert is_one_line(call("ops", *TWO, "--op", "Konv"), "no operator 'Konv'", "mean 'Conv'?")
    assert is_one_line(call("ops", *TWO, "--domain", "frob"), "no operators of domain 'frob'")
    assert is_one_line(call("ops", "--provider", "frob"), "no provider 'frob'")


def test_gradients_cover_operators_of_every_domain(call: Call) -> None:
    called = call(
        "ops", "--gradients", "--op", "LinearClassifier", "--op", "com.microsoft::QAttention"
    )
    assert called.code == 0
    assert "ai.onnx.ml::LinearClassifier" in called.out and "labels have no gradient" in called.out
    assert "1 rule, 0 none, 1 missing" in called.out
    training = call("ops", "--gradients", "--domain", "ai.onnx.preview.training")
    assert "ai.onnx.preview.training::Adam" in training.out
    hint = "mean 'LinearClassifier'"
    assert is_one_line(call("ops", "--gradients", "--op", "LinearClasifier"), "no operator", hint)


def test_operator_is_found_by_name_and_domain(call: Call) -> None:
    called = call(
        "ops", *TWO, "--op", "ai.onnx.ml::treeensembleclassifier", "--op", "ai.onnx::Conv"
    )
    assert "2 operators" in called.out and "ai.onnx.ml::TreeEnsembleClassifier" in called.out
    wrong = call("ops", *TWO, "--op", "com.microsoft::Gleu")
    assert is_one_line(wrong, "no operator 'com.microsoft::Gleu'", "mean 'com.microsoft::Gelu'")
