"""Optimizer blocks on stock onnxruntime: the peer's formulas, clipping, any other optimizer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adam import AdamW
from onward.optimizers.groups import Group
from onward.optimizers.muon import Muon
from onward.optimizers.sgd import SGD
from onward.training import onnxblock
from onward.training.api.optimizer_updates import read_updates
from onward.training.onnxblock import optim
from tests.training.nets import model_of, names, opened

RNG = np.random.default_rng(0)
SHAPES = {"w": (3, 4), "b": (4,), "s": ()}
P = {name: np.asarray(RNG.normal(size=shape), np.float32) for name, shape in SHAPES.items()}
G = {name: np.asarray(RNG.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def parameters(values: dict[str, Any]) -> Any:
    return [numpy_helper.from_array(np.asarray(v), name) for name, v in values.items()], []


def built(block: Any, values: dict[str, Any] = P) -> onnx.ModelProto:
    with onnxblock.empty_base():
        assert block(parameters(values)) == "updated_flag"
        model: onnx.ModelProto = block.to_model_proto()
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, lr: float, step: int, **sequences: Any) -> dict[str, Any]:
    feeds = {"learning_rate": np.array([lr], np.float32), "step": np.array([step]), **sequences}
    session = opened(model)
    return dict(zip(names(session.get_outputs()), session.run(None, feeds)))


def slots(model: onnx.ModelProto, values: dict[str, Any] = P) -> dict[str, Any]:
    held = names(model.graph.input)[4:]
    return {name: [np.zeros_like(v) for v in values.values()] for name in held}


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("correct", [True, False])
def test_adamw_matches_the_peer(decay: float, correct: bool) -> None:
    model = built(optim.AdamW(correct, betas=(0.8, 0.9), eps=1e-3, weight_decay=decay))
    state = slots(model)
    assert list(state) == ["first_order_moments", "second_order_moments"]
    mine, p, lr = {n: v.astype(np.float64) for n, v in P.items()}, list(P.values()), 0.1
    m, v = ({n: np.zeros(s) for n, s in SHAPES.items()} for _ in range(2))
    for step in (1, 2, 3):
        found = run(model, lr, step, params=p, gradients=list(G.values()), **state)
        p = found["updated_params"]
        state = {name: found[f"updated_{name}"] for name in state}
        size = lr * np.sqrt(1 - 0.9**step) / (1 - 0.8**step) if correct else lr
        for name, g in G.items():
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.9 * v[name] + 0.1 * g.astype(np.float64) ** 2
            mine[name] = mine[name] - size * m[name] / (np.sqrt(v[name]) + 1e-3)
            mine[name] = mine[name] - lr * decay * mine[name]
    for new, expected, first in zip(p, mine.values(), state["first_order_moments"]):
        np.testing.assert_allclose(new, expected, rtol=2e-5, atol=1e-6)
        assert new.shape == first.shape == expected.shape
    np.testing.assert_allclose(state["first_order_moments"][0], m["w"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state["second_order_moments"][0], v["w"], rtol=1e-5, atol=1e-7)


def test_sgd_matches_its_formula() -> None:
    model = built(optim.SGD())
    assert names(model.graph.input) == ["learning_rate", "step", "params", "gradients"]
    found = run(model, 0.5, 1, params=list(P.values()), gradients=list(G.values()))
    for new, p, g in zip(found["updated_params"], P.values(), G.values()):
        np.testing.assert_allclose(new, p - 0.5 * g, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_matches_torch(max_norm: float) -> None:
    clip = optim.ClipGradNorm(max_norm)
    found = run(
        built(optim.SGD(clip_grad=clip)),
        1.0,
        1,
        params=list(P.values()),
        gradients=list(G.values()),
    )
    tensors = [torch.nn.Parameter(torch.from_numpy(p)) for p in P.values()]
    for tensor, g in zip(tensors, G.values()):
        tensor.grad = torch.from_numpy(g.copy())
    torch.nn.utils.clip_grad_norm_(tensors, max_norm)
    for new, p, tensor in zip(found["updated_params"], P.values(), tensors):
        assert tensor.grad is not None
        np.testing.assert_allclose(new, p - tensor.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_clip_grad_norm_is_a_block() -> None:
    class Clipping(onnxblock.ForwardBlock):
        def __init__(self) -> None:
            super().__init__()
            self.clip = optim.ClipGradNorm(2.5)

        def build(self, name: str) -> Any:
            return self.clip(name)

    model = model_of([], [], [], {}, opset=onnx.defs.onnx_opset_version())
    model.ir_version = onnx.IR_VERSION
    info = onnx.helper.make_tensor_sequence_value_info("gradients", TensorProto.FLOAT, None)
    model.graph.input.append(info)
    block = Clipping()
    with onnxblock.base(model):
        name = block("gradients")
    (clipped,) = opened(block.to_model_proto()).run([name], {"gradients": list(G.values())})
    norm = np.sqrt(sum((g**2).sum() for g in G.values()))
    for ours, g in zip(clipped, G.values()):
        np.testing.assert_allclose(ours, g * min(1, 2.5 / (norm + 1e-6)), rtol=1e-5)


def test_custom_clipping_block_receives_the_sequence() -> None:
    class Same(onnxblock.Block):
        def build(self, name: str) -> str:
            return str(self.node("Identity", [name]))

    model = built(optim.AdamW(clip_grad=Same()))
    keys = {each.key for each in model.metadata_props}
    assert keys == {"onward.optimizer", "onward.slots", "onward.slot_layout"}
    run(model, 0.1, 1, params=list(P.values()), gradients=list(G.values()), **slots(model))


@pytest.mark.parametrize("clip", [None, optim.ClipGradNorm(0.5)])
def test_updates_in_the_metadata_match_the_graph(clip: Any) -> None:
    model = built(optim.AdamW(weight_decay=0.1, clip_grad=clip))
    metadata = {each.key: each.value for each in model.metadata_props}
    assert json.loads(metadata["onward.optimizer"])["style"] == "transformers"
    packed = read_updates(metadata)
    assert packed is not None and list(packed.sequences.values()) == json.loads(
        metadata["onward.slots"]
    )
    assert packed.clip_norm == (None if clip is None else 0.5)
    [layout], [update] = packed.layouts, packed.graphs
    assert layout.parameters == tuple(P) and list(layout.slots) == list(packed.sequences)
    whole = {"parameters": P, "gradients": G}
    feeds: dict[str, Any] = {
        name: np.concatenate([v.reshape(-1) for v in held.values()]) for name, held in whole.items()
    }
    feeds |= dict.fromkeys(layout.slots, np.zeros_like(feeds["gradients"]))
    feeds |= {"learning_rate": np.array(0.1, np.float32), "step": np.array(1)}
    if clip is not None:
        feeds["gradient_scale"] = np.array(1, np.float32)
        feeds["norm_squared"] = np.array(np.square(feeds["gradients"], dtype=np.float64).sum())
    flat = onnx.load_from_string(update.graph)
    new = opened(flat).run(["new_parameters"], feeds)[0]
    listed = run(
        model, 0.1, 1, params=list(P.values()), gradients=list(G.values()), **slots(model)
    )["updated_params"]
    np.testing.assert_allclose(new, np.concatenate([v.reshape(-1) for v in listed]), rtol=1e-6)


@pytest.mark.parametrize("optimizer", [Muon(), Adafactor()])
def test_updates_over_whole_matrices_are_by_name(optimizer: Any) -> None:
    matrices = {"a": np.ones((3, 4), np.float32), "b": np.ones((4, 2), np.float32)}
    model = built(optim.OptimizerBlock(optimizer), matrices)
    packed = read_updates({each.key: each.value for each in model.metadata_props})
    assert packed is not None and not any(each.flat for each in packed.layouts)
    layout = json.loads({e.key: e.value for e in model.metadata_props}["onward.slot_layout"])
    state = {
        name: [np.full(layout[name][p][0], layout[name][p][1], np.float32) for p in matrices]
        for name in names(model.graph.input)[4:]
    }
    gradients = [RNG.normal(size=p.shape).astype(np.float32) for p in matrices.values()]
    found = run(model, 0.1, 1, params=list(matrices.values()), gradients=gradients, **state)
    assert all((new != p).any() for new, p in zip(found["updated_params"], matrices.values()))


def test_groups_may_have_other_optimizers() -> None:
    groups = [Group(parameters="w", optimizer=AdamW(lr=0.1)), Group(parameters="s", frozen=True)]
    model = built(optim.OptimizerBlock(SGD(lr=0.1, momentum=0.9), groups=groups))
    held = names(model.graph.input)[4:]
    none = np.zeros(0, np.float32)
    state = {name: [none, none, none] for name in held}
    for name in held:
        place = 1 if name == "momentum_buffer" else 0
        state[name][place] = np.zeros_like(list(P.values())[place])
    found = run(model, 0.1, 1, params=list(P.values()), gradients=list(G.values()), **state)
    w, b, s = found["updated_params"]
    assert (w != P["w"]).any()
    np.testing.assert_allclose(b, P["b"] - 0.1 * G["b"], rtol=1e-6)
    assert s == P["s"]
    assert found["updated_momentum_buffer"][0].shape == (0,)


def test_half_precision_is_updated_in_float32() -> None:
    halves = {"w": np.ones((2, 2), np.float16)}
    model = built(optim.AdamW(), halves)
    state = {
        name: [np.zeros((2, 2), np.float32)]
        for name in ("first_order_moments", "second_order_moments")
    }
    g = [np.full((2, 2), 1e-4, np.float16)]
    found = run(model, 0.1, 1, params=list(halves.values()), gradients=g, **state)
    assert found["updated_params"][0].dtype == np.float16
    assert found["updated_second_order_moments"][0].max() > 0  # 1e-11: nothing in half precision


def test_double_precision_is_updated_in_float64() -> None:
    model = built(optim.SGD(), {"w": np.ones(2)})
    found = run(model, 0.5, 1, params=[np.ones(2)], gradients=[np.ones(2)])
    assert found["updated_params"][0].tolist() == [0.5, 0.5]
    assert found["updated_params"][0].dtype == np.float64


@pytest.mark.parametrize(
    ("values", "given"),
    [({}, "none at all"), ({"a": np.ones(2), "b": np.ones(2, np.float32)}, "DOUBLE, FLOAT")],
)
def test_parameters_of_two_types_are_refused(values: dict[str, Any], given: str) -> None:
    with onnxblock.empty_base(), pytest.raises(RuntimeError, match=f"of one type.*{given}"):
        optim.SGD()(parameters(values))
