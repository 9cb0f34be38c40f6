"""Parallel: how the processes of a training run share the work."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from onward.errors import OptionError
from onward.settings import (
    above,
    check_fields,
    explain_frozen,
    explain_keywords,
    integer,
    optional,
    true_or_false,
)

if TYPE_CHECKING:
    from onward.distributed.compression.compression import Compression
    from onward.distributed.local_steps import LocalSteps

MIB = 1 << 20


def _bucket(name: str, value: Any) -> Any:
    return value if value == "auto" else integer(1)(name, value)


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True, repr=False)
class Parallel:
    """How the processes of a training run share the work: `data` * `shard` processes.

    Attributes:
        data: copies of the model (or of its shards), each trained on its part of every batch;
            None: as many as there are processes for
        shard: processes that hold one copy together, each a part of its tensors (ZeRO)
        zero: what is sharded: 1 the optimizer's state, 2 gradients too, 3 parameters too
        offload: keep the optimizer's state in the memory of the CPU
        bucket: bytes of gradients that are reduced at a time, while the backward pass goes on;
            "auto": measured when the session opens, so that two runs may add in different orders
        sync_batch_norm: BatchNormalization over the batch of all processes, not of each
        compression: how gradients are sent, such as HalfPrecision(); None: as they are
        local_steps: average the weights every few steps instead of gradients, such as
            LocalSGD(every=8); None: gradients, at each step
        logical_shards: parts of every batch whose gradients are added in the same order, however
            many processes there are: the result is the same bit for bit; None: no such order
        backend: "gloo", "nccl", "mpi", or another name that torch.distributed knows; "auto": nccl
            for GPUs, gloo for CPUs
        timeout: seconds after which a process that does not answer counts as lost

    >>> Parallel(shard=2, zero=2).over(8)
    Parallel(data=4, shard=2, zero=2)
    """

    data: int | None = None
    shard: int = 1
    zero: Literal[1, 2, 3] = 3
    offload: bool = False
    bucket: int | Literal["auto"] = 4 * MIB
    sync_batch_norm: bool = False
    compression: Compression | None = None
    local_steps: LocalSteps | None = None
    logical_shards: int | None = None
    backend: str = "auto"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        check_fields(
            self,
            data=optional(integer(1)),
            shard=integer(1),
            zero=integer(1, 3),
            offload=true_or_false,
            bucket=_bucket,
            sync_batch_norm=true_or_false,
            logical_shards=optional(integer(1)),
            timeout=above(0),
        )
        for name in ("compression", "local_steps"):
            given = getattr(self, name)
            if given is not None and not callable(getattr(given, "open", None)):
                raise OptionError(
                    f"Parallel.{name} must be settings of onward.distributed, not {given!r}\n"
                    "for example HalfPrecision() or LocalSGD(every=8)"
                )
        self._check_together()

    def _check_together(self) -> None:
        """Refuse settings that exclude each other."""
        is_set = {
            "compression": self.compression is not None,
            "local_steps": self.local_steps is not None,
            "logical_shards": self.logical_shards is not None,
            "shard": self.shard > 1,
        }
        given = [name for name, used in is_set.items() if used]
        if self.sync_batch_norm and (is_set["logical_shards"] or is_set["local_steps"]):
            given.append("sync_batch_norm")
        if len(given) > 1:
            raise OptionError(
                f"Parallel: {given[0]} and {given[1]} exclude each other\ngive one of them"
            )

    def over(self, size: int) -> Parallel:
        """These settings for `size` processes, with `data` as a number."""
        data = size // self.shard if self.data is None else self.data
        if data * self.shard != size:
            given = "" if self.data is None else f"data {self.data} * "
            product = f"{given}shard {self.shard}" + (f" = {data * self.shard}" if given else "")
            fitting = f"{data * self.shard} processes" if given else f"a multiple of {self.shard}"
            raise OptionError(
                f"Parallel: {product} does not fit {size} processes\n"
                f"start {fitting}, or choose factors of {size}"
            )
        return replace(self, data=data)

    def __repr__(self) -> str:
        """The settings that are not the default ones."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = [f"{f.name}={given[f.name]!r}" for f in fields(self) if given[f.name] != f.default]
        return f"Parallel({', '.join(shown)})"
