"""Tools for training loops in PyTorch: onnxruntime.training.utils' names.

The names load, and torch with most of them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training.utils import data as data
    from onward.training.utils import hooks as hooks
    from onward.training.utils.ptable import PTable as PTable
    from onward.training.utils.torch_io_helper import (
        ORTModelInputOutputSchemaType as ORTModelInputOutputSchemaType,
    )
    from onward.training.utils.torch_io_helper import (
        ORTModelInputOutputType as ORTModelInputOutputType,
    )
    from onward.training.utils.torch_io_helper import PrimitiveType as PrimitiveType
    from onward.training.utils.torch_io_helper import (
        extract_data_and_schema as extract_data_and_schema,
    )
    from onward.training.utils.torch_io_helper import (
        unflatten_data_using_schema as unflatten_data_using_schema,
    )
    from onward.training.utils.torch_profile_utils import (
        get_runtime_pytorch_version as get_runtime_pytorch_version,
    )
    from onward.training.utils.torch_profile_utils import log_memory_usage as log_memory_usage
    from onward.training.utils.torch_profile_utils import (
        nvtx_function_decorator as nvtx_function_decorator,
    )
    from onward.training.utils.torch_profile_utils import (
        torch_nvtx_range_pop as torch_nvtx_range_pop,
    )
    from onward.training.utils.torch_profile_utils import (
        torch_nvtx_range_push as torch_nvtx_range_push,
    )
    from onward.training.utils.torch_type_map import (
        onnx_dtype_to_pytorch_dtype as onnx_dtype_to_pytorch_dtype,
    )
    from onward.training.utils.torch_type_map import (
        pytorch_scalar_type_to_pytorch_dtype as pytorch_scalar_type_to_pytorch_dtype,
    )
    from onward.training.utils.torch_type_map import (
        pytorch_type_to_onnx_dtype as pytorch_type_to_onnx_dtype,
    )

_MODULES = ("data", "hooks")
_MODULE_OF = {
    "PTable": "ptable",
    "PrimitiveType": "torch_io_helper",
    "ORTModelInputOutputType": "torch_io_helper",
    "ORTModelInputOutputSchemaType": "torch_io_helper",
    "extract_data_and_schema": "torch_io_helper",
    "unflatten_data_using_schema": "torch_io_helper",
    "torch_nvtx_range_push": "torch_profile_utils",
    "torch_nvtx_range_pop": "torch_profile_utils",
    "nvtx_function_decorator": "torch_profile_utils",
    "log_memory_usage": "torch_profile_utils",
    "get_runtime_pytorch_version": "torch_profile_utils",
    "pytorch_type_to_onnx_dtype": "torch_type_map",
    "onnx_dtype_to_pytorch_dtype": "torch_type_map",
    "pytorch_scalar_type_to_pytorch_dtype": "torch_type_map",
}
__all__ = [*_MODULE_OF]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in _MODULE_OF:
            return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
