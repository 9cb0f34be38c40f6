"""Modules of torch, exported: the gradients of every parameter and input are torch's own.

On stock onnxruntime, from torch.onnx.export by both of its exporters, with sizes known and unknown.
The older one computes shapes in the graph.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from onward.gradients.model import SUFFIX, gradient

Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
Export = Callable[..., ir.Model]


class Of(nn.Module):
    """A function of parameters (a module, so that export sees them) and of inputs."""

    def __init__(self, write: Callable[..., Tensor], **parameters: Tensor) -> None:
        super().__init__()
        self._write = write
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self._write(self, x, *others)


class Tied(nn.Module):
    """An embedding whose weight is the last layer's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)

    def forward(self, i: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.embedding(i)), self.embedding.weight)


class Again(nn.Module):
    """One layer, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x)) + x
        return x


class Block(nn.Module):
    """A transformer's layer; with need_weights, as it is by default, torch writes attention out."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.linear, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        mask = torch.triu(torch.full((size, size), float("-inf")), 1)
        x = self.norm(x + self.attention(x, x, x, attn_mask=mask)[0])
        return x + self.drop(F.gelu(self.linear(x)))


class Masked(nn.Module):
    """Attention to keys of another size, some of them padding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=4)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        found: Tensor = self.attention(q, k, v, key_padding_mask=padding)[0]
        return found


def warped(own: Any, x: Tensor) -> Tensor:
    """The grid is a sum of padded vectors that broadcast."""
    grid = F.affine_grid(own.theta, [2, 3, 5, 4], align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def multiplied(own: Any, x: Tensor, i: Tensor) -> Tensor:
    return own.base.scatter_reduce(0, i, x * own.w, "prod")  # type: ignore[no-any-return]


def put(own: Any, x: Tensor, i: Tensor) -> Tensor:
    return own.base.index_put((i,), x * own.w, accumulate=True)  # type: ignore[no-any-return]


def resized(own: Any, x: Tensor) -> Tensor:
    return F.interpolate(x * own.w, scale_factor=1.5, mode="bicubic")


def turned(own: Any, x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(own.w))


def seen_in_heads(own: Any, x: Tensor) -> Tensor:
    """Attention by hand, with views and permutations; a token of its own comes first."""
    x = torch.cat([own.token.expand(x.shape[0], -1, -1), x], 1)
    batch, time, size = x.shape
    q, k, v = F.linear(x, own.w).view(batch, time, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
    scores = q @ k.transpose(-2, -1) / size**0.5
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
    return y.transpose(1, 2).reshape(batch, time, size)


def squeezed(own: Any, x: Tensor) -> Tensor:
    """Where the size is not known, the older exporter asks for it: If it is 1, Squeeze."""
    y = (x[:, :1] * own.w).squeeze(1)
    return y.unflatten(-1, (2, -1)).permute(1, 0, 2).flatten(1)


N = torch.randn
THETA = torch.tensor([[[1.0, 0.1, 0.03], [-0.1, 0.9, 0.05]]]).repeat(2, 1, 1)
PADDING = torch.tensor([[False, False, True, True], [False, False, False, True]])

MODULES: dict[str, Make] = {
    "LSTM, two layers, both ways": lambda: (
        nn.LSTM(4, 3, num_layers=2, bidirectional=True),
        (N(5, 2, 4),),
    ),
    "GRU": lambda: (nn.GRU(4, 3, batch_first=True), (N(2, 5, 4),)),
    "attention, padded": lambda: (Masked(), (N(2, 5, 8), N(2, 4, 6), N(2, 4, 4), PADDING)),
    "transformer layer": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (N(2, 5, 8),),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(4, 6, 3, groups=2, padding=1, stride=2, padding_mode="reflect"),
            nn.GroupNorm(2, 6),
            nn.PReLU(6),
            nn.Conv2d(6, 6, 3, groups=6, dilation=2, padding=2),
            nn.InstanceNorm2d(6, affine=True),
            nn.ConvTranspose2d(6, 8, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.PixelShuffle(2),
        ),
        (N(2, 4, 8, 8),),
    ),
    "a weight read twice": lambda: (Tied(), (torch.tensor([[0, 2, 3], [6, 2, 0]]),)),
    "a layer called thrice": lambda: (Again(), (N(2, 4),)),
    "affine grid": lambda: (Of(warped, theta=THETA), (N(2, 3, 5, 4),)),
    "scattered products": lambda: (
        Of(multiplied, w=N(4), base=N(3, 4)),
        (N(5, 4), torch.randint(0, 3, (5, 4))),
    ),
    "index put": lambda: (Of(put, w=N(4), base=N(3, 4)), (N(5, 4), torch.randint(0, 3, (5,)))),
    "bicubic": lambda: (Of(resized, w=N(3, 1, 1)), (N(2, 3, 4, 4),)),
    "Fourier": lambda: (Of(turned, w=N(8)), (N(2, 8),)),
}

SAMPLE = ("LSTM, two layers, both ways", "transformer layer", "convolutions", "index put")
more = pytest.mark.conformance  # `make test` exports those of SAMPLE

OLD_STYLE: dict[str, Make] = {
    "transformer block": lambda: (Block(), (N(2, 5, 8),)),
    "heads by hand": lambda: (Of(seen_in_heads, w=N(24, 8), token=N(1, 1, 8)), (N(2, 5, 8),)),
    "squeezed": lambda: (Of(squeezed, w=N(8)), (N(2, 3, 8),)),
}


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else more) for name in MODULES]
)
def test_gradients_of_an_exported_module_match_torch(name: str) -> None:
    hold_against_torch(MODULES[name], dynamic=False)


@pytest.mark.sampled()
@pytest.mark.parametrize("name", ["index put", "Fourier", "convolutions"])
def test_gradients_match_torch_with_unknown_sizes(name: str) -> None:
    hold_against_torch(MODULES[name], dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OLD_STYLE)
def test_gradients_match_torch_with_computed_shapes(name: str, dynamic: bool) -> None:
    hold_against_torch(OLD_STYLE[name], dynamic=dynamic, export=old_style)


def hold_against_torch(make: Make, *, dynamic: bool, export: Export | None = None) -> None:
    torch.manual_seed(0)
    module, inputs = make()
    expected, cotangents = torchs(module, inputs)
    model = (export or exported)(module, inputs, dynamic=dynamic)
    names = [str(value.name) for value in model.graph.inputs]
    feeds = {name: x.detach().numpy() for name, x in zip(names, inputs)}
    given = dict(zip((str(y.name) for y in model.graph.outputs), cotangents))
    wanted = {names[int(n)] if n.isdigit() else n: dx for n, dx in expected.items()}
    extended = gradient(model, {name: f"{name}_dy" for name in given}, list(wanted))
    session = onnxruntime.InferenceSession(ir.to_proto(extended).SerializeToString())
    feeds |= {f"{name}_dy": dy.numpy() for name, dy in given.items()}
    feeds = {arg.name: feeds[arg.name] for arg in session.get_inputs()}
    found = session.run([f"{name}{SUFFIX}" for name in wanted], feeds)
    for name, dx in zip(wanted, found):
        scale = max(1.0, float(wanted[name].abs().max()))
        np.testing.assert_allclose(dx, wanted[name], rtol=0, atol=1e-4 * scale, err_msg=name)


def torchs(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The gradients of the parameters by name and of the inputs by number, and the cotangents."""
    floats = {str(i): x.requires_grad_() for i, x in enumerate(inputs) if x.is_floating_point()}
    leaves = {**dict(module.named_parameters()), **floats}
    results = _flat(module(*inputs))
    cotangents = [torch.randn_like(y) for y in results]
    found = torch.autograd.grad(results, list(leaves.values()), cotangents)
    return dict(zip(leaves, found)), cotangents


def _flat(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [y for each in results for y in _flat(each)]


def exported(module: nn.Module, inputs: tuple[Tensor, ...], *, dynamic: bool) -> ir.Model:
    """The model as a file has it, with every parameter a tensor of its own."""
    auto = torch.export.Dim.AUTO
    sizes = tuple(dict.fromkeys(range(x.dim()), auto) for x in inputs)
    if isinstance(module, Of):  # x, *others
        sizes = (sizes[0], *((sizes[1:],) if sizes[1:] else ()))  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        program = torch.onnx.export(
            module,
            tuple(x.detach() for x in inputs),
            dynamo=True,
            optimize=False,
            verbose=False,
            dynamic_shapes=sizes if dynamic else None,
        )
    assert program is not None
    return ir.from_proto(program.model_proto)


def old_style(module: nn.Module, inputs: tuple[Tensor, ...], *, dynamic: bool) -> ir.Model:
    """The same by torch's older exporter, as it is used for training."""
    names, file = [f"x{i}" for i in range(len(inputs))], io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(x.detach() for x in inputs),
            file,
            dynamo=False,
            input_names=names,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            dynamic_axes={name: {0: "batch", 1: "time"} for name in names} if dynamic else None,
        )
    return ir.from_proto(onnx.load_model_from_string(file.getvalue()))


def test_a_model_that_onnxruntime_has_fused_has_the_same_gradient(tmp_path: Path) -> None:
    op = onward.OpBuilder(opset=17)
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, rng.normal(size=shape).astype(np.float32))

    x = op.input("x", "float32", ("n", 3, 6, 6))
    first = op.Relu(op.Conv(x, weight("w1", 4, 3, 3, 3), weight("b1", 4), pads=[1, 1, 1, 1]))
    second = op.Conv(first, weight("w2", 4, 4, 3, 3), weight("b2", 4), pads=[1, 1, 1, 1])
    third = op.Relu(op.Add(second, first))
    last = op.Sigmoid(op.Conv(third, weight("w3", 2, 4, 1, 1), weight("b3", 2)))
    rows = op.Flatten(last, axis=1)
    model = op.model(y=op.Relu(op.Gemm(rows, weight("w4", 72, 5), weight("b4", 5))))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    fused = onward.load(tmp_path / "fused.onnx")
    assert {"FusedConv", "FusedGemm"} <= {node.op_type for node in fused.graph}
    feeds = {"x": rng.normal(size=(2, 3, 6, 6)), "dy": rng.normal(size=(2, 5))}
    feeds = {name: feed.astype(np.float32) for name, feed in feeds.items()}
    expected, found = (
        onward.InferenceSession(gradient(each, {"y": "dy"}, "x")).run(["x_grad"], feeds)[0]
        for each in (model, fused)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
