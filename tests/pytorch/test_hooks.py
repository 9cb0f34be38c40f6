"""Subscribers: what they see, the files of statistics, and the steps that are counted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.pytorch.hooks.statistics import (
    InspectActivation,
    StatisticsSubscriber,
    inspect_activation,
)
from onward.pytorch.hooks.subscriber import SubscriberBase
from onward.pytorch.hooks.subscriber_manager import (
    GlobalSubscriberManager,
    SubscriberManager,
    is_subscribed,
    no_increase_global_step,
)
from onward.pytorch.hooks.tensor_summary import summarize_tensor
from onward.pytorch.hooks.zero_stage3 import (
    ZeROOffloadSubscriber,
    configure_ort_compatible_zero_stage3,
)


class Net(torch.nn.Module):
    def __init__(self, outputs: int = 1, inspect: str = "") -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(4, 5)
        self.relu = torch.nn.ReLU(inplace=True)
        self.fc2 = torch.nn.Linear(5, 3)
        self.outputs, self.inspect = outputs, inspect

    def forward(self, a: Tensor, b: Tensor) -> Any:
        out = self.fc1(a + b)
        if self.inspect == "function":
            out = inspect_activation("fc1_out", out)
        if self.inspect == "class":
            out = InspectActivation.apply(
                "fc1_out", None, GlobalSubscriberManager.get_run_context(), out
            )  # type: ignore[no-untyped-call]
        out = self.fc2(self.relu(out))
        return out if self.outputs == 1 else (out, a + b)


def run(model: torch.nn.Module, steps: int = 1) -> None:
    for _ in range(steps):
        outputs = model(torch.ones(2, 4, requires_grad=True), b=torch.ones(2, 4))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        sum(each.sum() for each in outputs).backward()


@pytest.fixture(autouse=True)
def no_subscribers_are_left() -> Iterator[None]:
    yield
    GlobalSubscriberManager.unsubscribe()


def files_of(*activations: str) -> set[str]:
    return {
        "order.txt",
        *(f"{name}_{run}" for name in activations for run in ("forward", "backward")),
    }


MODULES = ["Net_0_0th_output", "Linear_1_0th_output", "ReLU_2_0th_output", "Linear_3_0th_output"]


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, []),
        ({"outputs": 2}, ["Net_0_1th_output"]),
        ({"inspect": "function"}, ["fc1_out"]),
        ({"inspect": "class"}, ["fc1_out"]),
    ],
)
def test_statistics_are_files_per_step(
    settings: dict[str, Any], more: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Net(**settings)
    plain = copy.deepcopy(model)
    plain.inspect = ""
    folder = tmp_path / "out"
    GlobalSubscriberManager.subscribe(
        model, [StatisticsSubscriber(folder, override_output_dir=True)]
    )
    run(model, 3)
    assert {path.name for path in folder.iterdir()} == {"step_0", "step_1", "step_2"}
    for step in folder.iterdir():
        assert {path.name for path in step.iterdir()} == files_of(*MODULES, *more)
    order = (folder / "step_0/order.txt").read_text().splitlines()
    assert order[0] == "Linear_1_0th_output_forward" and len(order) == len(set(order))
    assert (
        ">>Linear_1_0th_output forward run shape: torch.Size([2, 5])"
        in (folder / "step_1/Linear_1_0th_output_forward").read_text()
    )
    run(plain, 3)
    for ours, torchs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, torchs.grad, rtol=0, atol=0)


def test_steps_outside_the_range_are_left_out(tmp_path: Path) -> None:
    model = Net(inspect="function")
    subscriber = StatisticsSubscriber(tmp_path / "out", start_step=1, end_step=2, run_on_cpu=True)
    GlobalSubscriberManager.subscribe(model, [subscriber])
    run(model, 3)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step_1"]


def test_a_folder_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(FileExistsError, match=r"already exists.\nchoose another one"):
        StatisticsSubscriber(tmp_path)
    with pytest.warns(UserWarning, match="overriding it"):
        StatisticsSubscriber(tmp_path, override_output_dir=True)
    assert not tmp_path.exists()


def test_inspecting_needs_a_subscriber() -> None:
    with pytest.raises(RuntimeError, match="StatisticsSubscriber'> is not registered"):
        inspect_activation("x", torch.ones(1))


class Recorder(SubscriberBase):
    """Records each call, and doubles the output of Linear modules."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def pre_forward_outmost_module_apply_impl(
        self, run_rtx: Any, module: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        self.events.append("begin")
        return args, kwargs

    def pre_forward_tensor_apply_impl(
        self, run_rtx: Any, module: Any, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        self.events.append(f"in {type(module).__name__} {tensor_index}")
        return tensor

    def post_forward_module_apply_impl(
        self, run_rtx: Any, module: Any, args: Any, output: Any
    ) -> tuple[Any, Any]:
        self.events.append(f"out {type(module).__name__}")
        return args, output * 2 if isinstance(module, torch.nn.Linear) else output

    def post_forward_outmost_module_apply_impl(
        self, run_rtx: Any, module: Any, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        self.events.append(f"end of {run_rtx.global_states.execution_step}")
        return args, outputs


def test_subscribers_see_and_change_what_modules_do() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Flatten())
    x = torch.ones(1, 2)
    wanted = model(x) * 2
    recorder = Recorder()
    manager = SubscriberManager()
    manager.subscribe(model, [recorder])
    torch.testing.assert_close(model(x), wanted)
    assert recorder.events == [
        "begin", "in Sequential 0", "in Linear 0", "out Linear", "in Flatten 0", "out Flatten",
        "out Sequential", "end of 0",
    ]  # fmt: skip
    states = manager.get_run_context().global_states
    assert list(states.module_index_to_depth.values()) == [1, 2, 2]
    assert manager.get_subscriber(Recorder) is recorder


def test_passes_outside_training_are_not_counted() -> None:
    model, recorder, manager = torch.nn.Linear(2, 2), Recorder(), SubscriberManager()
    manager.subscribe(model, [recorder])
    with no_increase_global_step():
        model(torch.ones(1, 2))
    assert recorder.events == [] and manager.get_run_context().global_states.execution_step == 0
    model(torch.ones(1, 2))
    assert manager.get_run_context().global_states.execution_step == 1


def test_a_copied_model_reports_to_the_same_manager(tmp_path: Path) -> None:
    model = Net()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(tmp_path / "out")])
    twin = copy.deepcopy(model)
    run(twin)
    assert {path.name for path in (tmp_path / "out/step_0").iterdir()} == files_of(*MODULES)


def test_hooks_can_be_found_and_removed() -> None:
    model, manager = Net(), SubscriberManager()
    assert not is_subscribed(model)
    manager.subscribe(model, [Recorder()])
    assert is_subscribed(model) and is_subscribed(model.fc1)
    manager.subscribe(model, [Recorder()])  # replaces the first
    assert len(model.fc1._forward_hooks) == 1
    manager.unsubscribe()
    assert not is_subscribed(model)


@pytest.mark.parametrize(
    ("module", "subscribers", "error"),
    [
        (object(), [Recorder()], ValueError),
        (torch.nn.Linear(1, 1), [object()], ValueError),
        (torch.nn.Linear(1, 1), [], RuntimeError),
    ],
)
def test_wrong_subscriptions_are_refused(
    module: Any, subscribers: list[Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"must be|No subscribers"):
        SubscriberManager().subscribe(module, subscribers)


@pytest.mark.parametrize("refused", [ZeROOffloadSubscriber, configure_ort_compatible_zero_stage3])
def test_zero_stage_3_is_refused(refused: Any) -> None:
    with pytest.raises(ValueError, match=r"ZeRO-3 moves parameters.*\nuse its ZeRO-1"):
        refused()


TENSORS = {
    "float32": torch.tensor([3.0, -1.0, 0.0, 8.0, 2.5]),
    "float16": torch.tensor([6e4, 6e4, -1.0], dtype=torch.float16),
    "int64": torch.tensor([3, -1, 0]),
    "bool": torch.tensor([True, False]),
    "special": torch.tensor([float("nan"), float("inf"), 1.0]),
    "empty": torch.zeros(0, 3),
    "complex": torch.tensor([1 + 2j]),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_summaries_do_not_depend_on_the_buckets(kind: str) -> None:
    tensor = TENSORS[kind]
    assert summarize_tensor("t", tensor, 2) == summarize_tensor("t", tensor)


def test_a_summary_has_the_tensors_numbers() -> None:
    text = summarize_tensor("t", TENSORS["float32"], 2)
    assert "min: -1 max: 8, mean: 2.5, std: 3.5" in text
    assert "neg: 1, pos: 3, zero: 1" in text
    assert "nan: 1, inf: 1" in summarize_tensor("t", TENSORS["special"])
