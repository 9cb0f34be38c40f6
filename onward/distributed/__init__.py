"""Train on many processes and machines, over torch.distributed.

Names are imported when first used, so that importing this is fast.

    from onward.distributed import Parallel
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.distributed.parallel import Parallel as Parallel
    from onward.distributed.parameter_server.parameter_server import (
        ParameterServer as ParameterServer,
    )
    from onward.distributed.parameter_server.parameter_shards import shard_program as shard_program
    from onward.distributed.parameter_server.server_settings import ServerSettings as ServerSettings
    from onward.distributed.parameter_server.server_worker import (
        ParameterServerWorker as ParameterServerWorker,
    )

_MODULE_OF = {
    "Parallel": "onward.distributed.parallel",
    "ParameterServer": "onward.distributed.parameter_server.parameter_server",
    "ParameterServerWorker": "onward.distributed.parameter_server.server_worker",
    "ServerSettings": "onward.distributed.parameter_server.server_settings",
    "shard_program": "onward.distributed.parameter_server.parameter_shards",
}

__all__ = [*_MODULE_OF]

if not TYPE_CHECKING:  # for a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(
                f"module 'onward.distributed' has no attribute {name!r}\n"
                f"it has {', '.join(__all__)}"
            )
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
