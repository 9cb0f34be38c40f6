"""PartWriter: write this process's part of a save, at once or in a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from onward.checkpoints.disk import Disk
from onward.checkpoints.sharded.part_files import write_part
from onward.checkpoints.sharded.pieces import Piece
from onward.checkpoints.sharded.save_folders import SaveFolder


class PartWriter:
    """A part that is written; in a thread, from a copy of the pieces, so that they may change."""

    def __init__(
        self,
        save: SaveFolder,
        rank: int,
        pieces: Mapping[str, Sequence[Piece]],
        disk: Disk,
        *,
        asynchronous: bool,
    ) -> None:
        self._save, self._rank, self._pieces, self._disk = save, rank, pieces, disk
        self._digest = ""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if asynchronous:
            self._pieces = {
                name: [_copied(piece) for piece in each] for name, each in pieces.items()
            }
            self._thread = threading.Thread(target=self._write, name="onward-checkpoint")
            self._thread.start()

    @property
    def is_done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def result(self) -> str:
        """The SHA-256 of the part, when it is written; its error if it could not be."""
        if self._thread is None:
            self._write()
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digest

    def wait(self) -> None:
        """Wait until nothing is written any more."""
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        try:
            self._digest = write_part(self._save, self._rank, self._pieces, disk=self._disk)
        except Exception as error:  # result() reports it to the group
            self._error = error
        finally:
            self._pieces = {}  # the copy


def _copied(piece: Piece) -> Piece:
    return Piece(array=piece.array.copy(), start=piece.start, shape=piece.shape)
