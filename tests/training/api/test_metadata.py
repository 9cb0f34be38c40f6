"""Metadata, read from a model's bytes."""

from __future__ import annotations

from onward.training.api.metadata import metadata_of
from tests.models import mlp, serialized


def test_metadata_is_read_without_opening_the_model() -> None:
    model = mlp()
    model.metadata_props.update({"onward.slots": "[]", "größe": "", "long": "x" * 1000})
    found = metadata_of(serialized(model))
    assert found == {"onward.slots": "[]", "größe": "", "long": "x" * 1000}
    assert metadata_of(serialized(mlp())) == {}
