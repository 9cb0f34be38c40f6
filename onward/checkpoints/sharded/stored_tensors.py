"""StoredTensors: the tensors of a checkpoint by name, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onward.checkpoints.sharded.sharded_checkpoint import ShardedCheckpoint
from onward.checkpoints.tensor_files import Array, TensorMetadata


class StoredTensors(Mapping[str, Array]):
    """Whole tensors of a checkpoint, of which no more than one is in memory at a time."""

    def __init__(self, checkpoint: ShardedCheckpoint) -> None:
        self._checkpoint = checkpoint
        self.specs: dict[str, TensorMetadata] = (
            checkpoint.tensors
        )  # types and shapes, without reading

    def __getitem__(self, name: str) -> Array:
        if name not in self.specs:
            raise KeyError(name)
        return self._checkpoint.read_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)
