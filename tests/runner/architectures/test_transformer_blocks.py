"""Transformers and recurrent networks: formulas, causality, padding, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward.runner.architectures.new_model import new_model
from tests.runner.architectures.small_models import SMALL, Array, make_feeds


def run(model: ir.Model, feeds: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    [scores] = session.run(None, feeds)
    return np.asarray(scores)


def gpt2_in_numpy(w: dict[str, Array], tokens: Array, layers: int, heads: int) -> Array:
    """The formulas of the paper, one sequence at a time."""

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(x: Array, name: str) -> Array:
        q, k, v = np.split(linear(x, f"{name}.c_attn"), 3, axis=-1)
        results = []
        for a, b, c in zip(*(np.split(each, heads, axis=-1) for each in (q, k, v))):
            scores = np.where(np.tri(len(x)), a @ b.T / np.sqrt(a.shape[-1]), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            results.append(weights / weights.sum(-1, keepdims=True) @ c)
        return linear(np.concatenate(results, axis=-1), f"{name}.c_proj")

    def gelu(x: Array) -> Array:
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))

    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    for i in range(layers):
        x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
        hidden = gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + linear(hidden, f"h.{i}.mlp.c_proj")
    return np.asarray(norm(x, "ln_f") @ w["wte.weight"].T)


def read_weights(model: ir.Model, scale: float) -> dict[str, Array]:
    """The weights, made larger in the model too, so that no formula is nearly linear."""
    weights = {}
    for name, value in model.graph.initializers.items():
        if value.const_value is not None and name.endswith(("weight", "bias")):
            weights[name] = value.const_value.numpy() * np.float32(scale)
            value.const_value = ir.tensor(weights[name], name=name)
    return weights


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gpt2_computes_the_formulas_of_the_paper(dropout: float) -> None:
    model = new_model("gpt2", **SMALL["gpt2"] | {"layers": 2}, dropout=dropout)
    weights = read_weights(model, 8.0)
    feeds = make_feeds(model, 2)
    expected = [gpt2_in_numpy(weights, row, 2, 2) for row in feeds["tokens"]]
    np.testing.assert_allclose(run(model, feeds), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["transformer", "bert"])
def test_dropout_does_nothing_in_inference(name: str) -> None:
    models = [new_model(name, **SMALL[name], dropout=share) for share in (0.0, 0.3)]
    feeds = make_feeds(models[0], 2)
    without, with_dropout = (run(model, feeds) for model in models)
    np.testing.assert_allclose(without, with_dropout, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["transformer", "bert", "lstm"])
def test_padding_changes_no_score(name: str, dropout: float) -> None:
    model = new_model(name, **SMALL[name], dropout=dropout)
    feeds = make_feeds(model, 2)
    padded = {key: np.pad(tokens, ((0, 0), (0, 3))) for key, tokens in feeds.items()}
    np.testing.assert_allclose(run(model, feeds), run(model, padded), rtol=1e-4, atol=1e-6)


def test_sequence_of_only_padding_has_finite_scores() -> None:
    tokens: Any = np.zeros((2, 4), np.int64)
    for name in ("transformer", "lstm"):
        assert np.isfinite(run(new_model(name, **SMALL[name]), {"tokens": tokens})).all()


def test_lstm_tags_each_token() -> None:
    model = new_model("lstm", **SMALL["lstm"], task="tag", layers=2, bidirectional=False)
    assert run(model, make_feeds(model, 2, 6)).shape == (2, 6, 2)


def test_bert_scores_each_word() -> None:
    model = new_model("bert", **SMALL["bert"], head="words")
    assert run(model, make_feeds(model, 2, 6)).shape == (2, 6, 11)
