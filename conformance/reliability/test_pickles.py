"""R25, the short tier: two providers."""

from __future__ import annotations

import pytest

from conformance.reliability import pickles


@pytest.mark.integration
def test_nothing_is_unpickled_without_permission() -> None:
    faults, line = pickles.open_all(["default", "ReferenceExecutionProvider"])
    assert not faults
    assert "unpickled: 0 in" in line


def test_modules_that_could_unpickle_are_found() -> None:
    sources = {
        "a": "import pickle",
        "b": "from pickle import loads",
        "c": "np.load(path)",
        "d": "np.load(path, allow_pickle=False)",
        "e": "torch.load(path)",
        "f": "np.load(path, allow_pickle=True)",
        "g": "json.load(file)",
        "h": "import joblib.memory",
    }
    assert pickles.able_to_unpickle(sources) == ["a", "b", "c", "e", "f", "h"]


def test_listed_modules_are_those_that_can_unpickle() -> None:
    assert set(pickles.able_to_unpickle(pickles.read_sources())) == set(pickles.ALLOWED)
