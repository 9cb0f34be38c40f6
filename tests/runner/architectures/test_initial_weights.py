"""Initial weights: the standard deviations that the papers give, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.runner.architectures.initial_weights import orthogonal
from onward.runner.architectures.new_model import new_model

GPT2 = {"layers": 8, "heads": 4, "width": 64, "vocabulary": 500, "context": 100}
TRUNCATED = 0.8796  # of a normal's standard deviation, within two of them
BERT = {"layers": 1, "heads": 2, "width": 64, "vocabulary": 500}

# architecture, options, parameter, standard deviation
EXPECTED: list[tuple[str, dict[str, Any], str, float]] = [
    ("gpt2", GPT2, "wte.weight", 0.02),
    ("gpt2", GPT2, "h.3.attn.c_attn.weight", 0.02),
    ("gpt2", GPT2, "h.3.attn.c_proj.weight", 0.02 / 4),  # 16 branches
    ("gpt2", GPT2, "h.7.mlp.c_proj.weight", 0.02 / 4),
    ("bert", BERT, "bert.embeddings.word_embeddings.weight", 0.02 * TRUNCATED),
    ("bert", BERT, "bert.pooler.dense.weight", 0.02 * TRUNCATED),
    ("resnet", {}, "layer1.0.conv1.weight", (2 / (64 * 9)) ** 0.5),
    ("resnet", {}, "fc.weight", (1 / (3 * 512)) ** 0.5),
    ("squeezenet", {}, "features.3.expand3x3.weight", (2 / (16 * 9)) ** 0.5),
    ("squeezenet", {}, "classifier.1.weight", 0.01),
    ("mobilenet", {}, "features.2.conv.0.0.weight", (2 / 96) ** 0.5),
    ("mobilenet", {}, "features.2.conv.1.0.weight", (2 / (96 * 9)) ** 0.5),
    ("unet", {}, "down.1.conv2.weight", (2 / (32 * 9)) ** 0.5),
    ("unet", {}, "up.1.upsample.weight", (2 / 64) ** 0.5),
    ("vit", {"layers": 1}, "patch_embed.proj.weight", (1 / 48) ** 0.5 * TRUNCATED),
    ("vit", {"layers": 1}, "blocks.0.attn.qkv.weight", (2 / (192 + 192)) ** 0.5),
    ("vit", {"layers": 1}, "pos_embed", 0.02),
    ("vit", {"layers": 1}, "head.weight", 0.0),
    ("transformer", {}, "embedding.weight", 128**-0.5),
    ("transformer", {}, "encoder.layers.0.linear1.weight", (2 / (128 + 512)) ** 0.5),
    ("mlp", {}, "hidden1.weight", (2 / 64) ** 0.5),
    ("mlp", {"activation": "tanh"}, "hidden1.weight", (2 / (64 + 128)) ** 0.5),
    ("cnn", {}, "conv2.weight", (2 / (32 * 9)) ** 0.5),
    ("lstm", {}, "lstm.0.W", (2 / (64 + 128)) ** 0.5),
    ("lstm", {}, "lstm.0.R", 128**-0.5),
    ("autoencoder", {}, "encoder.hidden1.weight", (2 / 64) ** 0.5),
]


def read_weight(architecture: str, options: dict[str, Any], name: str) -> Any:
    tensor = new_model(architecture, **options).graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize(("architecture", "options", "name", "std"), EXPECTED)
def test_standard_deviation_is_that_of_the_paper(
    architecture: str, options: dict[str, Any], name: str, std: float
) -> None:
    weight = read_weight(architecture, options, name)
    assert weight.dtype == np.float32
    error = 4 / weight.size**0.5  # four standard errors of an estimate from this many numbers
    assert weight.std() == pytest.approx(std, rel=error)
    assert abs(weight.mean()) <= error * std


def test_forget_gates_start_open() -> None:
    bias = read_weight("lstm", {"hidden": 4}, "lstm.0.B")
    assert bias.shape == (2, 32)
    expected = [0] * 8 + [1] * 4 + [0] * 20  # input, output, forget, cell; then those of the state
    assert bias.tolist() == [expected] * 2


def test_orthogonal_keeps_lengths() -> None:
    matrix = orthogonal(np.random.default_rng(0), (16, 16))
    assert np.allclose(matrix @ matrix.T, np.eye(16), atol=1e-5)
