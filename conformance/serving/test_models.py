"""The models that the clients call are what models.py says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from conformance.serving.models import TYPES, write_models
from onward.serving.tensor_data import DATATYPES


def test_there_is_an_identity_of_each_datatype() -> None:
    assert set(TYPES) == set(DATATYPES)


def test_the_models_compute_what_the_clients_expect(tmp_path: Path) -> None:
    write_models(tmp_path)
    assert len(list(tmp_path.glob("*/1/model.onnx"))) == len(TYPES) + 3

    def run(name: str, **feeds: object) -> list[list[object]]:
        model = onnx.load(tmp_path / name / "1" / "model.onnx")
        return [each.tolist() for each in ReferenceEvaluator(model).run(None, feeds)]

    a, b = np.full((1, 16), 3, np.int32), np.full((1, 16), 1, np.int32)
    assert run("simple", INPUT0=a, INPUT1=b) == [[[4] * 16], [[2] * 16]]
    x, state = np.array([[3]], np.int32), np.array([[4]], np.int32)
    no, yes = np.array([[0]], np.int32), np.array([[1]], np.int32)
    assert run("accumulator", INPUT=x, START=no, STATE_IN=state) == [[[7]], [[7]]]
    assert run("accumulator", INPUT=x, START=yes, STATE_IN=state) == [[[3]], [[3]]]
    [[scores]] = run("classifier", x=np.array([[0, 2, 1, 9]], np.float32))
    assert np.argsort(scores).tolist() == [0, 2, 1]
