"""Encoding of lowered graphs as text."""

from __future__ import annotations

import json

import pytest

from onward.errors import InvalidModel
from onward.optimizers.adam import AdamW
from onward.programs.training_options import TrainingOptions
from onward.programs.update_graphs import build_update
from onward.providers.ort.training.metadata_encoding import (
    pack,
    pack_updates,
    unpack,
    unpack_updates,
)
from onward.providers.ort.training.update_lowering import lower_update


def test_pack_and_unpack_updates() -> None:
    model, layout = build_update(AdamW(), "float32", {"w": (2, 3), "b": (3,)}, TrainingOptions())
    lowered = lower_update(model, flat=True)
    plain = unpack({"key": pack({"updates": pack_updates([layout], [lowered])})}, "key")
    assert plain is not None
    assert unpack_updates(plain["updates"]) == ((layout,), (lowered,))


def test_other_version_unpacks_to_none() -> None:
    assert unpack({}, "key") is None
    assert unpack({"key": json.dumps({"version": 99, "updates": []})}, "key") is None


@pytest.mark.parametrize("text", ["no json", "[1]", '{"updates": []}'])
def test_unreadable_metadata_raises(text: str) -> None:
    with pytest.raises(
        InvalidModel, match=r"the model's key cannot be read: .*\nmake the artifacts"
    ):
        unpack({"key": text}, "key")
