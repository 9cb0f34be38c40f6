"""optim, utils and experimental: the peer's names, and what importing them loads."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from onward.training.utils.ptable import PTable

NAMES = {
    "optim": ["FusedAdam", "AdamWMode", "FP16_Optimizer"],
    "optim.fused_adam": ["FusedAdam", "AdamWMode"],
    "optim.fp16_optimizer": ["FP16_Optimizer"],
    "utils": [
        "PTable", "PrimitiveType", "ORTModelInputOutputType", "ORTModelInputOutputSchemaType",
        "extract_data_and_schema", "unflatten_data_using_schema", "torch_nvtx_range_push",
        "torch_nvtx_range_pop", "nvtx_function_decorator", "log_memory_usage",
        "get_runtime_pytorch_version", "pytorch_type_to_onnx_dtype", "onnx_dtype_to_pytorch_dtype",
        "pytorch_scalar_type_to_pytorch_dtype", "hooks", "data",
    ],
    "utils.torch_io_helper": ["_TensorStub", "extract_data_and_schema"],
    "utils.hooks": [
        "GlobalSubscriberManager", "StatisticsSubscriber", "inspect_activation",
        "SubscriberManager", "SubscriberBase", "ZeROOffloadSubscriber",
        "configure_ort_compatible_zero_stage3", "no_increase_global_step", "_InspectActivation",
    ],
    "utils.data": ["sampler", "LoadBalancingDistributedSampler"],
    "utils.data.sampler": [
        "LoadBalancingDistributedSampler", "LoadBalancingDistributedBatchSampler"
    ],
    "experimental": ["export_gradient_graph", "json_config"],
}  # fmt: skip


@pytest.mark.parametrize("module", NAMES)
def test_the_peers_names_exist(module: str) -> None:
    found = import_module(f"onward.training.{module}")
    for name in NAMES[module]:
        assert getattr(found, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = found.nothing


def test_packages_list_their_names() -> None:
    for module in ("optim", "utils", "utils.hooks", "utils.data", "experimental"):
        found = import_module(f"onward.training.{module}")
        assert set(dir(found)) >= {name for name in NAMES[module] if not name.startswith("_")}


def test_importing_the_packages_loads_no_torch() -> None:
    imports = "".join(f"import onward.training.{package}\n" for package in ("optim", "utils"))
    imports += "import onward.training.utils.hooks, onward.training.utils.data\n"
    imports += "import onward.training.experimental, onward.training.ortmodule\n"
    code = f"{imports}import sys\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_tables_are_aligned() -> None:
    table, details = PTable(), PTable()
    table.add_row(["name", ":", "value"]).append_annotation_table(details)
    details.add_row(["x", ":", 1])
    assert table.get_string() == "name  :  value  \nx     :  1      \n"
    assert PTable().get_string() == ""
    with pytest.raises(ValueError, match="a row must have 3 columns, not 1"):
        table.add_row(["x"])
