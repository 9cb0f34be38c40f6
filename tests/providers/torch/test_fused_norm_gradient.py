"""The gradient of a normalisation becomes one operator with the sums and dropout around it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward import losses, optimizers
from onward.programs.build import build_program
from onward.providers.torch.fused_norm_gradient import fuse_norm_gradients
from onward.providers.torch.kernels.norm_gradient import norm_gradient
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.lowering import TorchGraph, lower_program

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
]

CPU = torch.device("cpu")
SIZE = 8


def model(kind: str, norm: str, dropout: float) -> ir.Model:
    """Three residual blocks, with the norm after the sum ("post") or before the product ("pre")."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    h = op.input("x", "float32", (2, 3, SIZE))

    def weight(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, rng.normal(1, 0.5, shape).astype(np.float32))

    def normalised(value: ir.Value, name: str) -> ir.Value:
        scale = weight(f"{name}.scale", SIZE)
        if norm == "rms":
            return op.RMSNormalization(value, scale)
        return op.LayerNormalization(value, scale, weight(f"{name}.bias", SIZE))

    def block(value: ir.Value, name: str) -> ir.Value:
        parts = [op.MatMul(value, weight(f"{name}.{i}", SIZE, SIZE)) for i in range(3)]
        y = op.Add(op.Sum(*parts), weight(f"{name}.b", SIZE))
        return op.Dropout(y, np.float32(dropout), True) if dropout else y

    for i in range(3):
        if kind == "post":
            h = normalised(op.Add(h, block(h, f"block{i}")), f"norm{i}")
        else:
            h = op.Add(h, block(normalised(h, f"norm{i}"), f"block{i}"))
    return op.model(y=op.ReduceMean(h, [1], keepdims=0))


def graphs(kind: str, norm: str, dropout: float) -> tuple[TorchGraph, list[str]]:
    program = build_program(
        model(kind, norm, dropout), losses.CrossEntropy(), optimizers.SGD(lr=1.0), {"outputs": []}
    )
    provider = TorchProvider("TorchExecutionProvider", CPU, step_compiler=lambda function: function)
    lowered = lower_program(program, provider)
    assert lowered is not None
    return lowered.train, list(lowered.layout.gradients.values())


def feeds(graph: TorchGraph) -> Iterator[torch.Tensor]:
    rng = np.random.default_rng(1)
    for argument in graph.arguments:
        if argument.name == "labels":
            yield torch.tensor([1, 5])
        elif "int64" in argument.type:
            yield torch.tensor([7, 2, 0])  # seed, step and micro-batch
        else:
            shape = [int(size) for size in argument.shape]
            yield torch.from_numpy(rng.normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("kind", ["post", "pre"])
def test_gradients_are_those_of_separate_operators(kind: str, norm: str, dropout: float) -> None:
    graph, _ = graphs(kind, norm, dropout)
    given = list(feeds(graph))
    expected = graph.module(*given)
    fused = graph.model.clone()
    fuse_norm_gradients(fused)
    operators = [node.op_type for node in fused.graph]
    assert operators.count("NormGradient") == 3
    assert not any(each.endswith("NormalizationGrad") for each in operators)
    if dropout:
        assert operators.count("MaskedScale") == {"post": 3, "pre": 5}[kind]  # of six
    provider = TorchProvider("TorchExecutionProvider", CPU)
    for name, y, wanted in zip(graph.outputs, provider.lower(fused)(*given), expected):
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5, err_msg=name)


def test_sums_that_others_read_stay() -> None:
    graph, gradients = graphs("post", "layer", 0.0)
    assert any(node.op_type == "Add" for node in graph.model.graph)
    fused = graph.model.clone()
    fuse_norm_gradients(fused)
    assert {str(value.name) for value in fused.graph.outputs} >= set(gradients)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 8, 80, 768, 1000, 5000])
@pytest.mark.parametrize("rows", [0, 37, 64])
@pytest.mark.parametrize("case", ["plain", "terms", "residual", "dropout", "rms"])
def test_kernel_equals_the_reference(
    dtype: torch.dtype, columns: int, rows: int, case: str
) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    x, scale = draw(rows, columns), draw(columns)
    z = x.float()
    mean = z.mean(1)
    inv = torch.rsqrt((z - mean.unsqueeze(1)).square().mean(1) + 1e-5)
    terms = [draw(rows, columns) for _ in range(4 if case == "terms" else 1)]
    residual = draw(rows, columns) if case in ("residual", "dropout") else None
    key = torch.tensor([123456789, -987654321], dtype=torch.int32) if case == "dropout" else None
    statistics = (None, None) if case == "rms" else (mean, inv)
    given = (x, scale, *statistics, residual, key, *terms)
    options = {"axis": -1, "epsilon": 1e-5, "node": 3, "ratio": 0.25, "factor": 4 / 3}
    expected = norm_gradient(*given, **options)
    found = norm_gradient(*(None if t is None else t.cuda() for t in given), **options)
    error = 1e-4 if dtype == torch.float32 else 3e-2
    for y, wanted in zip(found, expected):
        torch.testing.assert_close(y.cpu(), wanted, rtol=error, atol=error)
