"""ORTModule: the wrapped module's names and methods, its graphs, copies and files."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onward.errors import OptionTypeError
from onward.pytorch.module import Module
from onward.training.ortmodule import DebugOptions, LogLevel, ORTModule
from onward.training.ortmodule import _utils as ort_utils
from onward.training.ortmodule._fallback import ORTModuleONNXModelException
from onward.training.ortmodule._graph_execution_manager import GraphExecutionManager


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.doubles = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return 2 * y if self.doubles else y

    def train_step(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self(x)
        y.sum().backward()
        return y

    def size_of(self) -> int:
        return sum(p.numel() for p in super().parameters())


def manager_of(module: ORTModule, training: bool = True) -> GraphExecutionManager:
    return module._torch_module._execution_manager(training)


X = torch.ones(4, 3)


def test_methods_of_the_module_run_on_captured_graphs() -> None:
    net = Net()
    module = ORTModule(copy.deepcopy(net))
    assert torch.allclose(module.train_step(X), net.train_step(X))
    assert net.layer.weight.grad is not None
    assert torch.allclose(module.layer.weight.grad, net.layer.weight.grad)
    assert manager_of(module)._execution_agent is not None
    assert module.train_step.__func__ is Net.train_step
    assert module.size_of() == 8  # it calls super(): it stays a method of the module


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_capture_again(copied: Any) -> None:
    module = ORTModule(Net(), DebugOptions(log_level=LogLevel.ERROR))
    other = copied(module)
    assert isinstance(other, ORTModule) and isinstance(other, Module)
    assert other.train_step.__self__ is other
    assert manager_of(other)._debug_options.logging.log_level is LogLevel.ERROR
    assert other.state_dict().keys() == {"layer.weight", "layer.bias"}


@pytest.mark.integration
def test_a_new_value_of_an_attribute_captures_again() -> None:
    net = Net()
    module = ORTModule(net)
    y = module(X)
    assert not manager_of(module)._original_model_has_changed
    module.doubles = True
    assert net.doubles and manager_of(module)._original_model_has_changed
    assert torch.allclose(module(X), 2 * y)


def test_attributes_are_the_modules() -> None:
    net = Net()
    module = ORTModule(net)
    module.note = "new"
    module.train_step = print
    assert net.note == "new" and "note" not in vars(module)
    assert module.train_step is print and net.train_step is not print


def test_names_that_collide_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Colliding(Net):
        def __init__(self) -> None:
            super().__init__()
            self._torch_module = True

        def load_state_dict(self) -> None:  # type: ignore[override]
            pass

    ORTModule(Colliding())
    assert [record.message for record in caplog.records] == [
        "User Module's _torch_module collides with ORTModule's attribute name.",
        "User Module's load_state_dict collides with ORTModule's attribute name.",
    ]


@pytest.mark.integration
def test_graphs_of_both_modes_are_written_and_read(tmp_path: Path) -> None:
    module = ORTModule(
        Net(), DebugOptions(save_onnx=True, onnx_prefix="net", save_path=str(tmp_path))
    )
    x = X.clone().requires_grad_()
    module(x)
    info = manager_of(module)._input_info
    assert info is not None and info.require_grad_names == ["x"]
    model = manager_of(module)._onnx_models.exported_model
    assert model.opset_import[0].version == 17
    assert manager_of(module, False)._onnx_models.exported_model is None
    module.eval()
    with torch.no_grad():
        module(X)
    names = ["torch_exported", "optimized", "execution_model"]
    wanted = [f"net_{name}_{mode}.onnx" for name in names for mode in ("training", "inference")]
    for name in (*wanted, "net_optimized_pre_grad_training.onnx"):
        onnx.checker.check_model(onnx.load(tmp_path / name))


def test_arguments_of_the_exporter_are_refused() -> None:
    module = ORTModule(Net())
    manager_of(module)._export_extra_kwargs = {"verbose": True}
    manager_of(module)._fallback_manager.policy = type(
        manager_of(module)._fallback_manager.policy
    ).FALLBACK_DISABLE
    with pytest.raises(ORTModuleONNXModelException, match=r"cannot be specified: '{'verbose'}'"):
        module(X)


@pytest.mark.integration
def test_constants_are_named_at_level_info() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, how: str) -> torch.Tensor:
            return x + 1 if how == "more" else x - 1

    module = ORTModule(Scaled(), DebugOptions(log_level=LogLevel.INFO))
    with pytest.warns(UserWarning, match="Received input of type <class 'str'> which may be"):
        assert torch.equal(module(X, "more"), X + 1)
    assert torch.equal(module(X, "less"), X - 1)


def test_capturing_leaves_the_random_numbers_alone() -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:2]

    before = ort_utils.get_random_states()
    ORTModule(Head())(X)
    after = ort_utils.get_random_states()
    assert before[0] == after[0] and torch.equal(before[2], after[2])
    assert np.array_equal(before[1][1], after[1][1])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(OptionTypeError, match=r"ORTModule takes a torch.nn.Module, not str"):
        ORTModule("net")
    with pytest.raises(OptionTypeError, match="debug_options must be DebugOptions, not str"):
        ORTModule(Net(), "INFO")  # type: ignore[arg-type]
