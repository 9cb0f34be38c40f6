"""Sessions of models that give or take maps: what onnxruntime returns, on every provider."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.errors import FeedError
from tests.models_ml import dict_vectorizer, zipped_classifier

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
WORDS = {"a": 1.0, "c": 2.0}


def expected(model: onnx.ModelProto) -> list[dict[object, float]]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    maps: list[dict[object, float]] = session.run(["maps"], {"x": X})[0]
    return maps


@pytest.mark.parametrize("labels", [(0, 1, 2), ("a", "b", "c")], ids=["numbers", "texts"])
@pytest.mark.parametrize("provider", [None, "CPU", "Torch", "OpenVINO", "Reference"])
def test_maps_are_lists_of_dicts(provider: str | None, labels: tuple[object, ...]) -> None:
    model = zipped_classifier(labels)
    providers = None if provider is None else [f"{provider}ExecutionProvider"]
    session = onward.InferenceSession(model, providers=providers)
    (maps,) = session.run(["maps"], {"x": X})
    assert isinstance(maps, list) and isinstance(maps[0], dict)
    for row, wanted in zip(maps, expected(model), strict=True):
        assert list(row) == list(wanted)
        np.testing.assert_allclose(list(row.values()), list(wanted.values()), rtol=1e-5, atol=1e-6)
    key = "string" if labels[0] == "a" else "int64"
    assert session.get_outputs()[1].type == f"seq(map({key},tensor(float)))"


def test_own_passes_leave_maps_as_they_are() -> None:
    model = zipped_classifier()
    session = onward.InferenceSession(model, onward.SessionOptions(own_passes=True))
    assert session.run(["maps"], {"x": X})[0][0].keys() == expected(model)[0].keys()


def test_a_map_can_be_fed_to_onnxruntime() -> None:
    for source in (dict_vectorizer(), dict_vectorizer().SerializeToString()):
        session = onward.InferenceSession(source)
        assert session.get_inputs()[0].type == "map(string,tensor(float))"
        assert session.run(None, {"x": WORDS})[0].tolist() == [[7.5]]


def test_other_providers_refuse_maps() -> None:
    session = onward.InferenceSession(dict_vectorizer(), providers=["TorchExecutionProvider"])
    with pytest.raises(FeedError, match="input 'x' is a map, which only onnxruntime takes"):
        session.run(None, {"x": WORDS})
