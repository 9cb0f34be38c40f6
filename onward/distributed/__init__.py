"""Train on many processes and machines, over torch.distributed.

Names are imported when first used, so that importing this is fast.

    from onward.distributed import Parallel
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.distributed.checkpoints.sharded_checkpoints import (
        ShardedCheckpoints as ShardedCheckpoints,
    )
    from onward.distributed.compression.half_reduction import HalfPrecision as HalfPrecision
    from onward.distributed.compression.int8_reduction import Int8 as Int8
    from onward.distributed.compression.power_sgd import PowerSGD as PowerSGD
    from onward.distributed.compression.top_k import TopK as TopK
    from onward.distributed.diloco import DiLoCo as DiLoCo
    from onward.distributed.local_sgd import LocalSGD as LocalSGD
    from onward.distributed.parallel import Parallel as Parallel
    from onward.distributed.parameter_server.parameter_server import (
        ParameterServer as ParameterServer,
    )
    from onward.distributed.parameter_server.parameter_shards import shard_program as shard_program
    from onward.distributed.parameter_server.server_settings import ServerSettings as ServerSettings
    from onward.distributed.parameter_server.server_worker import (
        ParameterServerWorker as ParameterServerWorker,
    )
    from onward.distributed.planner.layout_estimate import Devices as Devices
    from onward.distributed.planner.plan_layouts import plan_layouts as plan_layouts
    from onward.distributed.planner.planned_program import (
        open_planned_program as open_planned_program,
    )
    from onward.distributed.planner.process_memory import bytes_per_process as bytes_per_process
    from onward.distributed.planner.step_collectives import traffic as traffic
    from onward.distributed.planner.training_costs import measure_costs as measure_costs
    from onward.programs.batch_rows import rows_of_process as rows_of_process

_MODULE_OF = {
    "Devices": "onward.distributed.planner.layout_estimate",
    "DiLoCo": "onward.distributed.diloco",
    "HalfPrecision": "onward.distributed.compression.half_reduction",
    "Int8": "onward.distributed.compression.int8_reduction",
    "LocalSGD": "onward.distributed.local_sgd",
    "Parallel": "onward.distributed.parallel",
    "ParameterServer": "onward.distributed.parameter_server.parameter_server",
    "ParameterServerWorker": "onward.distributed.parameter_server.server_worker",
    "PowerSGD": "onward.distributed.compression.power_sgd",
    "ServerSettings": "onward.distributed.parameter_server.server_settings",
    "ShardedCheckpoints": "onward.distributed.checkpoints.sharded_checkpoints",
    "TopK": "onward.distributed.compression.top_k",
    "bytes_per_process": "onward.distributed.planner.process_memory",
    "measure_costs": "onward.distributed.planner.training_costs",
    "open_planned_program": "onward.distributed.planner.planned_program",
    "plan_layouts": "onward.distributed.planner.plan_layouts",
    "rows_of_process": "onward.programs.batch_rows",
    "shard_program": "onward.distributed.parameter_server.parameter_shards",
    "traffic": "onward.distributed.planner.step_collectives",
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
