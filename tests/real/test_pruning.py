"""Pruning nine real models: pruned equals masked, and most lose 30 % of their multiplications."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.compress.calibration import Calibration
from onward.compress.pruning.importance import by_magnitude
from onward.compress.pruning.removal import mask_model, remove_units
from onward.compress.pruning.sizes import keep_share
from onward.compress.pruning.units import find_groups, find_positions, prepare
from onward.graph.costs.node_costs import model_costs
from onward.sessions.inference import InferenceSession

FOLDER = Path("~/.cache/onward/real-models/compression").expanduser()
# the share of the multiplications that is left at keep=0.5, rounded up
MODELS = {
    "mnist-8": 0.35,
    "magika": 0.5,
    "silero": 0.5,
    "orientation": 0.35,
    "paraphrase-minilm": 0.55,
    "reachy": 0.3,
    "mobilenetv2": 0.35,
    "minilm": 0.55,
    "lstm": 0.3,
}


@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
def test_pruned_model_equals_masked_model(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there: benchmarks/compression_models.py fetches it")
    ready = prepare(path)
    positions = find_positions(ready)
    groups = find_groups(ready, positions)
    removal = keep_share(groups, by_magnitude(ready, positions, groups), 0.5, 8)
    pruned, masked = remove_units(ready, removal), mask_model(ready, removal)
    session = InferenceSession(masked)
    feeds = Calibration(FOLDER / f"{name}-test.npz", session.get_inputs(), batch=1).first()
    expected = session.run(None, feeds)
    for y, z in zip(InferenceSession(pruned).run(None, feeds), expected, strict=True):
        scale = max(float(np.abs(z).max()), 1.0) if z.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(y / scale, z / scale, rtol=1e-5, atol=1e-5)
    sizes = {
        key: size
        for value in session.get_inputs()
        for place, size in enumerate(np.shape(feeds[value.name]))
        for key in (f"{value.name}:{place}", str(value.shape[place]))
        if not isinstance(value.shape[place], int)
    }
    assert model_costs(pruned, sizes).flops < MODELS[name] * model_costs(ready, sizes).flops
