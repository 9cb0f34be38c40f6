"""Metadata, read from a model's bytes."""

from __future__ import annotations

from onward.graph.scan.file_metadata import graph_checksum, metadata_of
from tests.models import mlp, serialized


def test_metadata_is_read_without_opening_the_model() -> None:
    model = mlp()
    model.metadata_props.update({"onward.slots": "[]", "größe": "", "long": "x" * 1000})
    found = metadata_of(serialized(model))
    assert found == {"onward.slots": "[]", "größe": "", "long": "x" * 1000}
    assert metadata_of(serialized(mlp())) == {}


def test_the_checksum_is_only_of_the_graph() -> None:
    model = mlp()
    before = graph_checksum(serialized(model))
    model.metadata_props["a"] = "b"
    assert graph_checksum(serialized(model)) == before
    model.graph[0].name = "another"
    assert graph_checksum(serialized(model)) != before
