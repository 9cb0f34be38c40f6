"""DeepSpeed's ZeRO-3, which is refused: captured modules do not call its hooks."""

from __future__ import annotations

from typing import Any, NoReturn

from onward.errors import OptionError
from onward.pytorch.hooks.subscriber import SubscriberBase

_REFUSAL = (
    "DeepSpeed's ZeRO-3 moves parameters in hooks of submodules, which a captured module does not "
    "call\nuse its ZeRO-1 or ZeRO-2, or torch's FSDP2: torch.distributed.fsdp.fully_shard(module)"
)


class ZeROOffloadSubscriber(SubscriberBase):
    """Refused: the peer's subscriber for ZeRO-3."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        raise OptionError(_REFUSAL)


def configure_ort_compatible_zero_stage3(*args: Any, **keywords: Any) -> NoReturn:
    """Refused: the peer's preparation for ZeRO-3."""
    raise OptionError(_REFUSAL)
