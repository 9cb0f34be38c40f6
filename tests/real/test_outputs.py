"""Real models give stock onnxruntime's outputs, on every provider."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

import onward
from tests.real.catalog import MODELS, RealModel

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]
OPENVINO = "OpenVINOExecutionProvider"
PROVIDERS = ["default", "CPUExecutionProvider", OPENVINO, "TorchExecutionProvider"]
SLOW = ["ReferenceExecutionProvider", "InductorExecutionProvider"]
QUICK = {"mnist-8", "kinematics", "kinematics-int8", "silero-vad", "minilm"}
# OpenVINO takes only parts of these: an If whose branches it cannot convert, an STFT
DIVIDED = {(OPENVINO, name) for name in ("silero-vad", "silero-vad-half", "whisper-features")}
# onnxruntime sums its STFT naively; the last test here holds it against another form
TOLERANCE = {"whisper-features": 2e-3}


def check(model: RealModel, provider: str) -> None:
    theirs = onnxruntime.InferenceSession(model.path(), providers=["CPUExecutionProvider"])
    feeds = model.feeds(theirs)
    free = provider == "default" or (provider, model.name) in DIVIDED
    options = onward.SessionOptions(disable_fallback=not free)
    providers = None if provider == "default" else [provider]
    ours = onward.InferenceSession(model.path(), options, providers)
    tolerance = TOLERANCE.get(model.name, 1e-4)
    for got, wanted in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_outputs_are_onnxruntimes(model: RealModel, provider: str) -> None:
    check(model, provider)


@pytest.mark.parametrize("provider", SLOW)
@pytest.mark.parametrize("model", [m for m in MODELS if m.name in QUICK], ids=lambda m: m.name)
def test_outputs_are_onnxruntimes_where_it_takes_longer(model: RealModel, provider: str) -> None:
    check(model, provider)


@pytest.mark.parametrize("level", [0, 1, 2, 99])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_level_of_passes_preserves_outputs(model: RealModel, level: int) -> None:
    """Our own passes, run by onnxruntime with its own switched off."""
    from onward.passes.pipelines import PREPARE, inference
    from onward.providers.ort.provider import serialize

    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(model.path(), plain)
    rewritten = inference(level)(PREPARE(onward.load(model.path())))
    session = onward.InferenceSession(rewritten, onward.SessionOptions(graph_optimization_level=0))
    feeds = model.feeds(theirs)
    tolerance = TOLERANCE.get(model.name, 1e-4)
    for got, wanted in zip(session.run(None, feeds), theirs.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    assert serialize(rewritten)


def test_our_stft_is_nearer_to_the_convolutional_form_than_onnxruntimes() -> None:
    """The same features by STFT and by convolution, from one package (docs/providers.md)."""
    (stft,) = (model for model in MODELS if model.name == "whisper-features")
    other = replace(stft, member=stft.member.replace("whisper80", "whisper80_conv"))
    theirs = onnxruntime.InferenceSession(stft.path(), providers=["CPUExecutionProvider"])
    feeds = stft.feeds(theirs)
    exact, *_ = onnxruntime.InferenceSession(other.path()).run(None, feeds)
    ours, *_ = onward.InferenceSession(stft.path()).run(None, feeds)
    stock, *_ = theirs.run(None, feeds)
    assert np.abs(ours - exact).max() < 1e-5 < np.abs(stock - exact).max()
