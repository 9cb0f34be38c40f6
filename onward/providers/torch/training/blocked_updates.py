"""BlockedUpdate: an update of vectors block by block, where operators run one by one on a CPU.

Each operator of an update passes over its vectors. Those of a large model do not fit in a cache,
and what an operator returns is memory that the system has to clear first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from onward.providers.torch.dtypes import Tensor

BLOCK = 1 << 16  # elements


class BlockedUpdate:
    """Calls an elementwise update on one block after the other.

    `inputs` are the graph's; those of `vectors` are cut. `targets` are the vectors that change, and
    the places of their new contents among the results.
    """

    def __init__(
        self,
        call: Callable[..., Sequence[Tensor]],
        inputs: Sequence[str],
        vectors: Sequence[str],
        targets: Sequence[tuple[str, int]],
    ) -> None:
        self._call = call
        self._vectors = [inputs.index(name) for name in vectors]
        self._targets = [(inputs.index(name), place) for name, place in targets]

    def __call__(self, finite: Tensor | bool, *given: Tensor) -> None:
        """Replace the vectors, if `finite`."""
        if not finite:
            return
        arguments, size = list(given), given[self._vectors[0]].numel()
        for start in range(0, size, BLOCK):
            for place in self._vectors:
                arguments[place] = given[place][start : start + BLOCK]
            results = self._call(*arguments)
            blocks = [arguments[place] for place, _ in self._targets]
            torch._foreach_copy_(blocks, [results[place] for _, place in self._targets])


def has_blocks(vectors: Sequence[Tensor]) -> bool:
    """Whether vectors are updated in blocks: on a CPU, of one type, and larger than a block.

    Slots of fewer bits are rounded by random numbers, which belong to places in a whole vector.
    """
    first = vectors[0]
    is_alike = all(each.is_cpu and each.dtype == first.dtype for each in vectors)
    return is_alike and first.numel() > BLOCK
