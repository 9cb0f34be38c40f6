"""PartWriter: at once or in a thread, with the same result or the same error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints.sharded.part_files import read_part
from onward.checkpoints.sharded.pieces import Piece, listed_pieces, whole_pieces
from onward.checkpoints.sharded.save_folders import SaveFolder
from onward.distributed.checkpoints.part_writer import PartWriter
from onward.errors import CheckpointError
from tests.checkpoints.sharded.sharded_folders import DISK


def pieces() -> dict[str, list[Piece]]:
    return listed_pieces(whole_pieces({"w": np.arange(5.0), "b": np.ones((2, 2), np.float16)}))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_digest_is_that_of_the_part(tmp_path: Path, asynchronous: bool) -> None:
    save = SaveFolder(tmp_path, 1, 1, 1)
    writer = PartWriter(save, 2, pieces(), DISK, asynchronous=asynchronous)
    assert writer.result() == read_part(save, 2, DISK).sha256
    assert writer.is_done


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_error_is_raised_by_result(tmp_path: Path, asynchronous: bool) -> None:
    (tmp_path / "run").write_text("")
    writer = PartWriter(
        SaveFolder(tmp_path / "run", 1, 1, 1), 0, pieces(), DISK, asynchronous=asynchronous
    )
    writer.wait()
    with pytest.raises(CheckpointError, match=r"part-00000.safetensors is not saved: "):
        writer.result()
