"""Pieces: what they cover, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.checkpoints.sharded.pieces import Piece, listed_pieces, whole_pieces
from onward.errors import CheckpointError


def test_a_piece_is_cut_without_a_copy() -> None:
    data = np.arange(10.0)
    piece = Piece(array=data, start=5, shape=(4, 5))
    cut = piece.cut((7, 9))
    assert cut.span == (7, 9) and cut.array.tolist() == [2.0, 3.0]
    assert np.shares_memory(cut.array, data)


def test_whole_tensors_of_any_layout_become_pieces() -> None:
    tensors = {
        "t": np.arange(6.0).reshape(2, 3).T,
        "scalar": np.array(3),
        "empty": np.zeros((0, 2)),
    }
    pieces = whole_pieces(tensors)
    assert pieces["t"].array.tolist() == [0, 3, 1, 4, 2, 5] and pieces["t"].shape == (3, 2)
    assert pieces["scalar"].span == (0, 1) and pieces["scalar"].shape == ()
    assert pieces["empty"].span == (0, 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"array": np.zeros((2, 2)), "start": 0, "shape": (4,)}, r"one axis, not \(2, 2\)\ngive"),
        ({"array": [1.0], "start": 0, "shape": (4,)}, "one axis, not list\ngive"),
        ({"array": np.zeros(3), "start": 2, "shape": (2, 2)}, r"\[2, 5\) of a tensor of shape"),
        ({"array": np.zeros(1), "start": -1, "shape": (2,)}, r"covers \[-1, 0\)"),
    ],
)
def test_pieces_outside_of_their_tensor_are_refused(given: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        Piece(**given)


def test_what_a_checkpoint_cannot_hold_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'w': a ndarray is not a Piece\ngive Piece\("):
        listed_pieces({"w": [np.zeros(3)]})  # type: ignore[list-item]
    with pytest.raises(CheckpointError, match="'w' is of object, which a checkpoint cannot hold"):
        listed_pieces(whole_pieces({"w": np.array([None])}))
    one, other = np.zeros(1, np.float32), np.zeros(1, np.float64)
    with pytest.raises(CheckpointError, match="the same type and shape"):
        listed_pieces(
            {"w": [Piece(array=one, start=0, shape=(2,)), Piece(array=other, start=1, shape=(2,))]}
        )
