"""explain: what is captured, what falls back and why, and that the module stays as it was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onward
from onward.errors import OptionTypeError
from onward.pytorch import Explanation, explain
from onward.pytorch.explanation.treemap import Rectangle, treemap


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return 2 * dy


class Custom(nn.Module):
    """Its own backward cannot be captured; its linear layer alone is too small for a program."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Double.apply(self.linear(x))
        return found


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.custom = Custom()
        self.unused = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.custom(self.first(x))
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        found: torch.Tensor = x + self.mlp(x)
        return found


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())


@pytest.fixture(scope="module")
def block() -> Explanation:
    return explain(Block(), torch.randn(2, 3, 8, requires_grad=True))


@pytest.fixture(scope="module")
def mixed() -> Explanation:
    return explain(Mixed(), torch.ones(2, 4))


def status(found: Explanation) -> dict[str, str]:
    return {row.path: row.status for row in found.submodules}


@pytest.mark.integration
def test_convolutional_network_is_captured_and_left_as_it_was() -> None:
    module = convolutional()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(2, 1, 5, 5)
    generator = torch.get_rng_state()
    found = explain(module, x)
    assert found.headline == "Sequential is captured whole, in training mode."
    assert set(status(found).values()) == {"captured"} and not found.fallbacks
    assert all(torch.equal(tensor, before[n]) for n, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in module.parameters())
    [program] = found.programs
    assert program.changes == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert program.parameters == program.parameters_with_gradients == 4 and program.buffers == 3
    assert found.bytes_of("parameter") == found.bytes_of("gradient") == 4 * (18 + 2 + 2 + 2)
    assert found.bytes_of("buffer") == 4 * 2 + 4 * 2 + 8


@pytest.mark.integration
def test_program_of_a_transformer_block_is_described(block: Explanation) -> None:
    [program] = block.programs
    assert program.engine == "onnxruntime"
    [x] = program.inputs
    assert x.name == "x" and x.dtype == "float32" and x.shape[1:] == (3, 8) and x.has_gradient
    assert program.guards == (f"{x.shape[0]} >= 2",)
    assert [result.has_gradient for result in program.results] == [True]
    assert list(program.nodes) == ["captured", "joint", "forward", "backward"]
    assert min(program.nodes.values()) > 0
    assert set(program.seconds) == {"capture", "differentiate", "compile"}
    assert sum(row.captured for row in program.operators) == program.nodes["captured"]


def test_rewrites_name_the_submodules_that_they_come_from(block: Explanation) -> None:
    [program] = block.programs
    composites = {each.operator: set(each.modules) for each in program.composites}
    assert composites["onward::LayerNormalizationGrad"] == {"norm"}
    assert composites["onward::AttentionGrad"] == {"attention"}
    assert composites["onward::GeluGrad"] == {"mlp.1"}
    assert composites["onward::DropoutMask"] == {"mlp.2"}
    fusions = {each.operator: set(each.modules) for each in program.fusions}
    assert fusions["com.microsoft::FusedMatMul"] == {"attention"}
    assert program.kept_composites == 0  # onnxruntime runs the bodies


def test_saved_values_have_the_sizes_of_the_example(block: Explanation) -> None:
    saved = {each.name: each for each in block.tensors if each.kind == "saved"}
    assert saved["x"].shape == (2, 3, 8) and saved["x"].bytes == 2 * 3 * 8 * 4
    assert saved["x"].note == "an input" and saved["x"].module == ""
    assert None not in {each.shape for each in saved.values()}
    largest = next(iter(saved.values()))
    assert largest.module.startswith("mlp") and largest.bytes == 2 * 3 * 16 * 4


def test_submodule_with_its_own_backward_runs_in_pytorch(mixed: Explanation) -> None:
    reason = "it calls Double, a torch.autograd.Function"
    assert mixed.fallbacks == {"": reason, "custom": reason}
    found = status(mixed)
    assert found["first"] == found["first.0"] == found["first.1"] == "captured"
    assert found["custom"] == found["custom.linear"] == "PyTorch"
    assert found["unused"] == "not called"
    assert [program.path for program in mixed.programs] == ["first"]
    assert {each.module for each in mixed.tensors if each.kind == "saved"} <= {
        *("first", "first.0", "first.1")
    }
    assert mixed.headline.startswith("Mixed runs in PyTorch; 3 of its 7 submodules are captured")


def test_module_that_falls_back_entirely() -> None:
    found = explain(Custom(), torch.ones(2, 4))
    assert found.headline == "Custom runs in PyTorch: nothing is captured."
    assert not found.programs and set(status(found).values()) == {"PyTorch"}
    assert found.bytes_of("saved") == 0 and found.bytes_of("gradient") == 80
    assert "it calls Double" in str(found) and "Nothing is saved" in found.html()


def test_fallback_gives_no_warning_and_changes_no_argument() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            found: torch.Tensor = Double.apply(x.add_(torch.rand(4)))
            return found

    module, x = InPlace(), torch.zeros(2, 4)
    held, generator = module.calls, torch.get_rng_state()
    explain(onward.Module(module, {"fallback": "forbid"}), x)
    assert module.calls is held and held.item() == 0 and not x.any()
    assert torch.equal(torch.get_rng_state(), generator)


def test_without_gradients_nothing_is_saved() -> None:
    with torch.no_grad():
        found = explain(nn.Linear(2, 2).eval(), torch.ones(1, 2))
    assert found.headline == "Linear is captured whole, in evaluation mode."
    assert found.bytes_of("saved") == found.bytes_of("gradient") == 0
    assert found.programs[0].nodes["backward"] == 0


def test_tied_parameters_are_counted_once_and_composites_kept_by_torch() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.tokens.weight
            self.idle = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.norm(self.tokens(x)))
            return found

    module = onward.Module(Tied(), {"provider": "torch"})
    found = explain(module, torch.tensor([[1, 2], [3, 4]]))
    assert found.bytes_of("parameter") == 4 * (20 + 8 + 6)
    assert found.bytes_of("gradient") == 4 * (20 + 8)  # nothing reads `idle`
    [program] = found.programs
    assert program.engine == "torch" and program.fusions == ()
    assert program.kept_composites == sum(each.count for each in program.composites) > 0
    assert not module.programs


def test_other_objects_are_refused() -> None:
    with pytest.raises(OptionTypeError, match=r"takes a torch.nn.Module, not str\ngive a module"):
        explain("model.onnx")  # type: ignore[arg-type]


def test_text_fits_a_terminal(block: Explanation, mixed: Explanation) -> None:
    for found in (block, mixed):
        assert max(map(len, str(found).splitlines())) < 100
    assert "Program 1: the whole module" in str(block) and "FusedMatMul" in str(block)
    assert re.search(r"custom \(Custom\) +PyTorch", str(mixed))


def test_json_has_all_facts(block: Explanation) -> None:
    data = json.loads(json.dumps(block.to_json()))
    assert data["bytes"]["saved"] == block.bytes_of("saved")
    assert len(data["submodules"]) == len(block.submodules) and data["fallbacks"] == {}


class Page(HTMLParser):
    """Checks that every element is closed, and counts elements by class."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.classes += (dict(attrs).get("class") or "").split()
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.classes += (dict(attrs).get("class") or "").split()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_no_network(mixed: Explanation, tmp_path: Path) -> None:
    mixed.save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    saved = {each.module for each in mixed.tensors if each.kind == "saved" and each.bytes}
    assert page.classes.count("cell") == len(saved) > 0
    assert page.classes.count("pill") == len(mixed.submodules)
    assert page.classes.count("program") == 1
    assert not re.search(r"https?://|__[A-Z]+__|<script", text)


def test_names_make_no_element() -> None:
    evil = "</td><script>alert(1)</script>"
    module = nn.Sequential()
    module.add_module(evil, nn.Linear(2, 2))
    text = explain(module, torch.ones(2, 2)).html()
    assert "alert(1)" in text and "<script" not in text
    Page(text)


def test_treemap_fills_its_box() -> None:
    sizes = [5.0, 3.0, 2.0, 1.0, 1.0]
    boxes = treemap(sizes, Rectangle(0, 0, 120, 60))
    areas = [box.width * box.height for box in boxes]
    assert areas == pytest.approx([600 * size for size in sizes])
    assert treemap([], Rectangle(0, 0, 1, 1)) == []


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, onward.pytorch; dir(onward.pytorch); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_unknown_names_get_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'explian'\n.*explain"):
        getattr(onward.pytorch, "explian")  # noqa: B009
