"""Fine-tuning of what torch's exporters write: adapters, new heads and frozen statistics."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import onward
from onward.losses import MSE
from onward.optimizers import SGD, AdamW
from onward.runner.config import make_config
from onward.runner.finetune.adapt import adapt_model
from onward.runner.finetune.batch_norms import batch_norm_names
from onward.runner.finetune.head import new_head
from onward.runner.finetune.layer_depths import layers_by_depth
from onward.runner.finetune.lora import add_lora, merge_lora
from onward.runner.precision import to_mixed_precision
from tests.runner.finetune.adapter_checks import assert_adapts
from tests.runner.finetune.finetune_models import difference, random, run


class Network(nn.Module):
    """Convolutions, attention with separate projections, a matrix that is used twice, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.tied = nn.Parameter(torch.randn(8, 6))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x))).flatten(2).transpose(1, 2)
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = x + self.o(torch.softmax(q @ k.transpose(1, 2) / 3, -1) @ v)
        x = x + torch.tanh(x @ self.tied) @ self.tied.T
        return torch.softmax(self.head(x.mean(1)), -1)


EXPORTERS = ["dynamo", "dynamo, not optimized", "legacy"]


@functools.cache
def exported() -> dict[str, onnx.ModelProto]:
    """The network as each exporter writes it."""
    torch.manual_seed(0)
    module, x, file = Network().eval(), torch.zeros(2, 3, 4, 4), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters about themselves
        axes = {"x": {0: "batch"}}
        torch.onnx.export(module, (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
        program = torch.onnx.export(
            module,
            (x,),
            dynamo=True,
            optimize=False,
            verbose=False,
            input_names=["x"],
            dynamic_shapes=({0: "batch"},),
        )
        assert program is not None
        plain = program.model_proto
        program.optimize()
    found = (program.model_proto, plain, onnx.load_model_from_string(file.getvalue()))
    return dict(zip(EXPORTERS, found, strict=True))


def model_of(exporter: str) -> ir.Model:
    return ir.from_proto(exported()[exporter])


@pytest.mark.integration
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_exported_layers_have_adapters(exporter: str) -> None:
    model, feeds = model_of(exporter), {"x": random(2, 3, 4, 4)}
    assert_adapts(model, feeds)
    adapted = assert_adapts(model, feeds, dora=True, alpha=1.0)
    # stem, q, k, v, o, tied, head; optimized, the tied matrix is stored twice
    assert len(adapted.pairs) == (7 if exporter == "dynamo, not optimized" else 8)
    nodes = [node.name for node in model.graph if node.op_type in ("MatMul", "Gemm")]
    assert len(add_lora(model, 2, [str(nodes[-1])]).pairs) == 1


@pytest.mark.integration
@pytest.mark.parametrize("exporter", EXPORTERS[:2])
def test_projections_of_an_attention_are_found_by_their_names_in_torch(exporter: str) -> None:
    adapted = add_lora(model_of(exporter), 2, ["q.weight", "v.*"])
    kinds = [f"{layer}.weight.lora_{kind}" for layer in "qv" for kind in "AB"]
    assert list(adapted.names) == kinds


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_new_head_and_adapters_train_together(exporter: str) -> None:
    head = new_head(model_of(exporter), 3)
    targets = ["/q/*", "/v/*"] if exporter == "legacy" else ["q.*", "v.weight"]
    adapted = add_lora(head.model, 2, targets)
    options = onward.TrainingOptions(
        trainable=[*adapted.names, *head.names],
        frozen_batch_norms=batch_norm_names(adapted.model),
    )
    feeds = {"x": (x := random(6, 3, 4, 4)), "target": np.eye(3, dtype=np.float32)[[0, 1, 2] * 2]}
    session = onward.TrainingSession(adapted.model, MSE(), AdamW(lr=0.05), options)
    losses = [float(session.step(feeds)["loss"]) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    [expected] = [session.predict({"x": x})[str(adapted.model.graph.outputs[0].name)]]
    merged = merge_lora(adapted, session.parameters)
    assert expected.shape == (6, 3)
    assert difference(run(merged, x=x), [expected]) < 1e-5


def test_layers_of_an_attention_have_the_same_depth() -> None:
    assert layers_by_depth(model_of("dynamo, not optimized"), frozen=["*.bias"]) == [
        ["stem.weight", "norm.weight"],
        ["q.weight", "k.weight", "v.weight"],
        ["o.weight"],
        ["tied"],
        ["head.weight"],
    ]


def test_batch_norms_are_found_by_the_names_of_their_tensors() -> None:
    model = model_of("dynamo, not optimized")
    assert batch_norm_names(model, ["norm.*"]) == batch_norm_names(model) == ["getitem"]


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_train_as_the_same_formula_does_in_torch(dora: bool) -> None:
    op = onward.OpBuilder()
    base, x, target = random(3, 4), random(6, 4, seed=1), random(6, 3, seed=2)
    y = op.Gemm(op.input("x", "float32", ("batch", 4)), op.initializer("w", base), transB=1)
    adapted = add_lora(op.model(y=y), 2, alpha=3.0, dora=dora)
    tensors = {name: torch.tensor(a, requires_grad=True) for name, a in adapted.tensors().items()}
    optimizer = torch.optim.SGD(tensors.values(), lr=0.1)
    options = onward.TrainingOptions(trainable=adapted.names)
    session = onward.TrainingSession(adapted.model, MSE(), SGD(lr=0.1), options)
    for _ in range(5):
        w = torch.tensor(base) + 1.5 * tensors["w.lora_B"] @ tensors["w.lora_A"]
        if dora:
            w = tensors["w.lora_magnitude"] * w / w.norm(dim=1, keepdim=True)
        loss = nn.functional.mse_loss(torch.tensor(x) @ w.T, torch.tensor(target))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found = session.step({"x": x, "target": target})["loss"]
        np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(session.parameters[name], tensor.detach().numpy(), atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    "settings",
    [
        {"freeze": ["q.*", "k.weight", "stem.*"], "layer_decay": 0.9},
        {"lora": 2, "new_head": 4},
        {"quantization_aware": True, "new_head": 4},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_exported_models_are_adapted_and_exported(exporter: str, settings: dict[str, Any]) -> None:
    model, x = model_of(exporter), random(4, 3, 4, 4)
    if exporter == "legacy" and "freeze" in settings:  # which does not keep the names
        settings = {**settings, "freeze": ["q.bias", "k.bias"]}
    adapted = adapt_model(make_config(settings), model, lambda: [{"x": x}])
    options = onward.TrainingOptions(
        trainable=adapted.trainable, frozen=adapted.frozen, groups=adapted.groups
    )
    session = onward.TrainingSession(adapted.model, MSE(), AdamW(lr=0.01), options)
    target = random(4, settings.get("new_head", 5))
    losses = [float(session.step({"x": x, "target": target})["loss"]) for _ in range(4)]
    assert losses[-1] < losses[0]
    if "freeze" in settings:
        everything = {name for names in layers_by_depth(model) for name in names}
        frozen = everything - set(session.parameters)
        assert len(frozen) == (2 if exporter == "legacy" else 5)  # stem, q and k.weight
    result = adapted.export({**session.parameters, **session.statistics})
    [predicted] = session.predict({"x": x}).values()
    assert difference(run(result, x=x), [predicted]) < 1e-4


@pytest.mark.integration
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_exported_models_train_in_mixed_precision(exporter: str) -> None:
    adapted = adapt_model(make_config(new_head=4), model_of(exporter))
    feeds = {"x": random(4, 3, 4, 4), "target": random(4, 4)}
    plain, mixed = (
        onward.TrainingSession(model, MSE(), SGD(lr=0.01))
        for model in (adapted.model, to_mixed_precision(adapted.model, "float16"))
    )
    for session in (plain, mixed):
        session.step(feeds)
    assert list(plain.parameters) == list(mixed.parameters)
    for name, array in plain.parameters.items():
        np.testing.assert_allclose(mixed.parameters[name], array, atol=1e-3)
    adapted.export({**mixed.parameters, **mixed.statistics})
