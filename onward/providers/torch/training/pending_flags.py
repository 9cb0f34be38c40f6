"""PendingFlags: flags on a GPU, which are read together.

Reading one copies a byte, which takes the host about as long for one as for many.
"""

from __future__ import annotations

from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.packed_results import BufferedTensor, stacked


class PendingFlags:
    """Flags that no one has read yet.

    >>> import torch
    >>> flags = PendingFlags()
    >>> first, second = flags.add(torch.tensor(True)), flags.add(torch.tensor(False))
    >>> bool(first), bool(second)
    (True, False)
    """

    def __init__(self) -> None:
        self._pending: list[PendingFlag] = []

    def add(self, tensor: Tensor | BufferedTensor) -> PendingFlag:
        """A flag whose tensor no one will change."""
        flag = PendingFlag(tensor, self)
        self._pending.append(flag)
        return flag

    def read(self) -> None:
        """Read all of them with one copy from the device."""
        pending, self._pending = self._pending, []
        numbers = stacked([flag.tensor for flag in pending]).tolist()
        for flag, number in zip(pending, numbers):
            flag.value = number


class PendingFlag:
    """True or false, once it is read: others that wait are read with it."""

    def __init__(self, tensor: Tensor | BufferedTensor, group: PendingFlags) -> None:
        self.tensor, self._group = tensor, group
        self.value: bool | None = None

    def __bool__(self) -> bool:
        if self.value is None:
            self._group.read()
        return bool(self.value)
