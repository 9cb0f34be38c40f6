"""The engine that the memory of a program is planned for, from the providers of a session."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from onward.lazy import LazyModule
from onward.providers.choose import (
    INDUCTOR,
    TORCH,
    Asked,
    available,
    choose,
    mentions_auto,
    named_options,
)
from onward.providers.options import SessionOptions

if TYPE_CHECKING:
    from onward.programs.memory.engine_memory import FindEngineMemory
    from onward.providers.torch.training import kept_values
else:  # torch is loaded when it is asked for
    kept_values = LazyModule("onward.providers.torch.training.kept_values")


def planned_engine(
    providers: Asked, options: SessionOptions | None = None
) -> FindEngineMemory | None:
    """What the first provider keeps in memory of a train graph; None: every value."""
    if not providers or mentions_auto(providers):
        return None
    name, given = next(iter(named_options(providers).items()))
    if name not in (TORCH, INDUCTOR) or name not in available():
        return None
    chosen = SessionOptions() if options is None else options
    provider = choose([(name, given)], None, chosen).engines(chosen)[0].provider
    return functools.partial(kept_values.find_kept_values, provider=provider)
