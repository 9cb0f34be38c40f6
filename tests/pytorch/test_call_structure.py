"""flatten and Structure: nested arguments without their tensors."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import torch

from onward.pytorch.call_structure import flatten, tensor_names


@dataclasses.dataclass
class Named(OrderedDict[str, Any]):
    """A dataclass that is a dictionary, too, as Hugging Face's outputs are."""

    loss: Any
    rest: Any = None


def test_a_dataclass_that_is_a_dictionary() -> None:
    data = Named(torch.ones(1))
    data["loss"], data["more"] = data.loss, torch.zeros(2)
    tensors, structure = flatten([data])
    assert len(tensors) == 2 and tensor_names([data]) == ["0_loss", "0_more"]
    (found,) = structure.rebuild(["a", "b"])
    assert type(found) is Named and (found.loss, found.rest) == ("a", None)
    assert list(found.items()) == [("loss", "a"), ("more", "b")]


def test_keys_of_constants_have_a_hash() -> None:
    _, structure = flatten([slice(0, 2), {3}, 1.5, torch.float32])
    _, other = flatten([slice(0, 3), {4}, 1.5, torch.float32])
    assert hash(structure.key()) == hash(flatten([slice(0, 2), {3}, 1.5, torch.float32])[1].key())
    assert structure.key() != other.key() and structure.kind() == other.kind()
