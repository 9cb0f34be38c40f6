"""Sequences written as tensors: the same results, and a gradient in every float type."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import onward
from onward.gradients.model import gradient
from onward.graph.scopes import walk
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.passes.pipelines import PREPARE
from tests.passes.running import assert_same, run_reference

X = np.arange(14, dtype=np.float32).reshape(2, 7)
WRITTEN = {
    "a chunk size": "s = SplitToSequence<axis=1>(x, three) y = SequenceAt(s, one)",
    "the last, smaller chunk": "s = SplitToSequence<axis=1>(x, three) y = SequenceAt(s, last)",
    "a vector of sizes": "s = SplitToSequence<axis=-1>(x, sizes) y = SequenceAt(s, one)",
    "no sizes": "s = SplitToSequence<axis=1>(x) y = SequenceAt(s, last)",
    "no sizes, squeezed": "s = SplitToSequence<axis=1, keepdims=0>(x) y = SequenceAt(s, one)",
    "one chunk": "s = SplitToSequence(x, three) y = SequenceAt(s, last)",
    "one piece twice": """s = SplitToSequence<axis=1>(x, three)
        a = SequenceAt(s, one) b = SequenceAt(s, one) y = Add(a, b)""",
    "the length": "s = SplitToSequence<axis=1>(x, three) y = SequenceLength(s)",
    "the length and a piece": """s = SplitToSequence<axis=1>(x, three)
        a = SequenceAt(s, one) n = SequenceLength(s) f = CastLike(n, a) y = Mul(a, f)""",
    "joined on another axis": """s = SplitToSequence(x)
        y = ConcatFromSequence<axis=1>(s)""",
    "stacked": """s = SplitToSequence<keepdims=0>(x)
        y = ConcatFromSequence<axis=1, new_axis=1>(s)""",
    "listed": """a = Neg(x) s = SequenceConstruct(a, x)
        c = SequenceAt(s, last) d = SequenceAt(s, zero) y = Sub(c, d)""",
    "listed and joined": """a = Neg(x) s = SequenceConstruct(a, x)
        y = ConcatFromSequence<axis=1>(s)""",
    "read in a branch": """s = SplitToSequence<axis=1>(x, three)
        y = If(yes) <then_branch = t () => (float[a, b] u) { u = SequenceAt(s, one) },
            else_branch = e () => (float[a, b] v) { v = SequenceAt(s, last) }>""",
}
LEFT = {
    "a sequence that is an output": "y = SplitToSequence<axis=1>(x, three)",
    "a position that is fed": "s = SplitToSequence<axis=1>(x, three) y = SequenceAt(s, i)",
    "a size that is not known": "s = SplitToSequence(z, three) y = SequenceAt(s, one)",
    "another reader": """s = SplitToSequence<axis=1>(x, three)
        t = SequenceErase(s, one) y = SequenceAt(t, one)""",
}
CONSTANTS = """one = Constant<value_int=1>() last = Constant<value_int=-1>()
    three = Constant<value_int=3>() sizes = Constant<value_ints=[1, 4, 2]>()
    zero = Constant<value_int=0>() yes = Constant<value = bool {1}>()"""


def parsed(body: str, result: str = "float[]") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 7] x, float[n] z, int64 i) => ({result} y) {{ {CONSTANTS} {body} }}""")


def operators(model: ir.Model) -> set[str]:
    return {node.op_type for node in walk(model.graph)}


@pytest.mark.parametrize("body", WRITTEN.values(), ids=list(WRITTEN))
def test_split_returns_the_pieces_of_the_sequence(body: str) -> None:
    proto = parsed(body, "int64" if body.endswith("SequenceLength(s)") else "float[]")
    prepared = PREPARE(ir.from_proto(proto))
    assert not any("Sequence" in name for name in operators(prepared))
    feeds = {"x": X, "z": np.zeros(3, np.float32), "i": np.array(0)}
    assert_same(run_reference(proto, feeds), run_reference(prepared, feeds))


@pytest.mark.parametrize("body", LEFT.values(), ids=list(LEFT))
def test_a_sequence_whose_elements_are_not_known_stays(body: str) -> None:
    kind = "seq(float[])" if body.startswith("y") else "float[]"
    assert "SplitToSequence" in operators(PREPARE(ir.from_proto(parsed(body, kind))))


def test_a_position_out_of_range_stays_for_the_engine_to_refuse() -> None:
    body = "s = SplitToSequence<axis=1>(x, three) y = SequenceAt(s, three)"
    assert "SequenceAt" in operators(PREPARE(ir.from_proto(parsed(body))))


class Attention(nn.Module):
    """GPT-2's: queries, keys and values are split from one product."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.norm, self.project = nn.LayerNorm(size), nn.Linear(size, 3 * size)

    def forward(self, x: Tensor) -> Tensor:
        pieces = self.project(self.norm(x)).split(self.size, dim=2)
        q, k, v = (y.view(*y.shape[:2], self.heads, -1).transpose(1, 2) for y in pieces)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).reshape(x.shape)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.layers = nn.Sequential(Attention(32, 2), Attention(32, 2))
        self.head = nn.Linear(32, 100, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(ids)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def exported() -> tuple[nn.Module, Tensor, ir.Model]:
    torch.manual_seed(0)
    module, ids = Gpt().to(torch.bfloat16), torch.randint(0, 100, (2, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            *(module, (ids,)),
            dynamo=True,
            optimize=False,
            verbose=False,
            input_names=["ids"],
            output_names=["logits"],
        )
    assert program is not None
    model: ir.Model = program.model
    assert "SplitToSequence" in operators(model)
    return module, ids, model


@pytest.mark.integration
def test_a_bfloat16_export_with_sequences_has_torchs_gradients(
    exported: tuple[nn.Module, Tensor, ir.Model],
) -> None:
    module, ids, model = exported
    names = [name for name, _ in module.named_parameters()]
    extended = gradient(model, {"logits": "dy"}, names)
    session = onward.InferenceSession(extended, providers=["TorchExecutionProvider"])
    dy = torch.randn(2, 8, 100).to(torch.bfloat16)
    found = session.run([f"{name}_grad" for name in names], {"ids": ids, "dy": dy})
    exact = copy.deepcopy(module).float()
    exact(ids).backward(dy.float())
    for (name, parameter), mine in zip(exact.named_parameters(), found, strict=True):
        assert parameter.grad is not None
        wanted = parameter.grad.numpy()
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(
            mine.astype(np.float32) / scale, wanted / scale, atol=0.02, err_msg=name
        )


def test_a_bfloat16_export_with_sequences_is_trained(
    exported: tuple[nn.Module, Tensor, ir.Model],
) -> None:
    _, ids, model = exported
    session = onward.TrainingSession(
        model,
        CrossEntropy(axis=-1),
        SGD(lr=0.5),
        providers=["TorchExecutionProvider"],
    )
    feeds = {"ids": ids.numpy(), "labels": np.roll(ids.numpy(), -1, axis=1)}
    losses = [float(session.step(feeds)["loss"]) for _ in range(3)]
    assert losses[-1] < losses[0]
