"""The command line on models with maps as inputs or outputs, such as scikit-learn's classifiers."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Call, is_one_line
from tests.models_ml import dict_vectorizer, zipped_classifier


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """A file of a model whose scores are a list of maps."""
    onnx.save(zipped_classifier(("a", "b", "c")), tmp_path / "maps.onnx")
    return tmp_path / "maps.onnx"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A file of a model whose input is a map."""
    onnx.save(dict_vectorizer(), tmp_path / "words.onnx")
    return tmp_path / "words.onnx"


def test_inspect_prints_map_types(call: Call, maps: Path, words: Path) -> None:
    report = json.loads(call("inspect", maps, "--json").out)
    types = {value["name"]: value["type"] for value in report["outputs"]}
    assert types == {"label": "tensor(string)", "maps": "seq(map(string,tensor(float)))"}
    assert report["cost"]["unknown_nodes"] == 0 and report["memory"] is not None
    assert "map(string,tensor(float))" in call("inspect", words).out


def test_inspect_plans_the_memory_of_a_model_with_maps(call: Call, maps: Path) -> None:
    called = call("inspect", maps, "--memory")
    assert called.code == 0 and "memory plan" in called.out


def test_run_prints_maps(call: Call, maps: Path) -> None:
    called = call("run", maps, "--random")
    assert called.code == 0 and "{'a': " in called.out


def test_compare_models_with_maps(call: Call, maps: Path, tmp_path: Path) -> None:
    assert call("compare", maps, maps, "--seconds", "0").code == 0
    other = onnx.load(maps)
    other.graph.node[0].attribute[0].floats[0] += 1
    onnx.save(other, tmp_path / "other.onnx")
    called = call("compare", maps, tmp_path / "other.onnx", "--seconds", "0", "--json")
    assert called.code == 1
    outputs = {each["name"]: each["difference"] for each in json.loads(called.out)["outputs"]}
    assert outputs["maps"]["max_absolute"] > 0 and not outputs["maps"]["reason"]


def test_grad_of_maps_needs_the_tensor_before_them(call: Call, maps: Path) -> None:
    assert call("grad", maps, "--wrt", "x", "--output", "scores=dy").code == 0
    called = call("grad", maps, "--wrt", "x", "--output", "maps=dy")
    assert is_one_line(called, "'maps' is a list of maps (ZipMap)", "'scores'")


def test_grad_of_parameters_includes_coefficients(call: Call, maps: Path) -> None:
    called = call("grad", maps, "--parameters", "--output", "scores=dy")
    assert called.code == 0 and "LinearClassifier.coefficients_grad" in called.out


def test_map_input_has_no_random_feed(call: Call, words: Path) -> None:
    assert is_one_line(call("bench", words), "no random feed for input 'x' of type map(string")
