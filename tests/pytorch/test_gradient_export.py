"""export_gradient_graph: its inputs and outputs, and gradients equal to torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from onward.errors import UnsupportedModel
from onward.pytorch.gradient_export import export_gradient_graph


def network() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    return model


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def binary_cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    p = output.softmax(1)
    return -torch.sum(labels * torch.log2(p[:, 0]) + (1 - labels) * torch.log2(p[:, 1]))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], Any], int, bool]] = {
    "a loss in Python, one row": (network, binary_cross_entropy, 1, True),
    "batch norm in training": (normalized, nn.CrossEntropyLoss(), 3, True),
    "batch norm in evaluation": (normalized, nn.CrossEntropyLoss(), 3, False),
}


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_torchs(case: str, tmp_path: Path) -> None:
    make, loss_fn, rows, training = CASES[case]
    torch.manual_seed(0)
    model = make().train(training)
    path = tmp_path / "gradients.onnx"
    labels = torch.randint(0, 2, (rows,))
    export_gradient_graph(model, loss_fn, torch.randn(rows, 4, requires_grad=True), labels, path)
    saved = onnx.load(path)
    onnx.checker.check_model(saved)
    names = [name for name, _ in model.named_parameters()]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert [value.name for value in saved.graph.input] == ["input", "labels", *names]
    outputs = [value.name for value in saved.graph.output]
    assert outputs == ["output", "loss", *(f"{name}_grad" for name in trained)]

    x, labels = torch.randn(5, 4), torch.randint(0, 2, (5,))  # another batch size
    feeds = {name: p.detach().numpy() for name, p in model.named_parameters()}
    feeds |= {"input": x.numpy(), "labels": labels.numpy()}
    found = dict(zip(outputs, onnxruntime.InferenceSession(path).run(None, feeds)))
    output = model(x)
    loss = loss_fn(output, labels)
    loss.backward()
    wanted = {"output": output, "loss": loss}
    wanted |= {f"{name}_grad": model.get_parameter(name).grad for name in trained}
    for name, value in wanted.items():
        torch.testing.assert_close(
            torch.from_numpy(found[name]), value.detach(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_opset_that_is_too_old_is_warned_about(tmp_path: Path) -> None:
    given = nn.Linear(2, 1), nn.functional.mse_loss, torch.ones(2, 2), torch.ones(2, 1)
    with pytest.warns(
        UserWarning, match=r"the gradient graph needs opset \d+, which is newer than 12"
    ):
        export_gradient_graph(*given, tmp_path / "g.onnx", opset_version=12)


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


def test_modules_that_torch_cannot_export_are_refused(tmp_path: Path) -> None:
    given = Branching(2, 2), nn.functional.mse_loss, torch.ones(2, 2), torch.ones(2, 2)
    with pytest.raises(
        UnsupportedModel, match=r"Branching cannot be exported by torch: .*\ntorch\.export"
    ):
        export_gradient_graph(*given, tmp_path / "g.onnx")
