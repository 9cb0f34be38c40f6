"""A step that updates only the rows that a batch has read equals one that updates all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward import losses, optimizers
from onward.programs import row_gradients
from onward.programs.build import build_program
from onward.providers.provider import Draw
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.executable import TorchTraining, open_program
from onward.providers.torch.training.sparse_rows import sum_rows, with_sparse_rows
from tests.programs.test_row_gradients import ROWS, SIZE, bag_of_words

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
# eps: else a gradient that is all rounding would be a step as long as any other
OPTIMIZERS = {"sgd": optimizers.SGD(lr=0.5), "adagrad": optimizers.Adagrad(lr=0.1, eps=1e-3)}


def opened(
    optimizer: Any,
    *,
    sparse: bool,
    device: str = "cpu",
    model: ir.Model | None = None,
    **options: Any,
) -> TorchTraining:
    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    provider = TorchProvider(
        "InductorExecutionProvider",
        torch.device(device),
        step_compiler=compiler,
        captures_steps=device == "cuda",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_gradients, "SMALLEST_TABLE", 1 if sparse else 1 << 30)
        given = bag_of_words() if model is None else model
        program = build_program(given, losses.CrossEntropy(), optimizer, options)
    assert any(update.sparse for update in program.layout.updates) is sparse
    found = open_program(program, provider)
    assert found is not None
    found.set_rates(0, [[optimizer.lr] * found.lookahead] * len(found.store.updates))
    return found


def batches(rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    found = [
        {"ids": rng.integers(0, ROWS, (rows, 5)), "labels": rng.integers(0, 3, rows)}
        for _ in range(4)
    ]
    found[1]["ids"][:2] = -1  # the last row, several times
    return found


def train(engine: TorchTraining, rows: int) -> list[float]:
    seen = []
    for i, feeds in enumerate(batches(rows)):
        done = engine.step(feeds, Draw(0, i, 0), 1.0)
        assert done is not None and bool(done[1])
        seen += [float(done[0]["loss"]), engine.gradient_norm()]
    return seen


def compare(one: TorchTraining, other: TorchTraining, rows: int) -> None:
    np.testing.assert_allclose(train(one, rows), train(other, rows), rtol=1e-5)
    np.testing.assert_allclose(one.store.read("table"), other.store.read("table"), atol=1e-6)
    np.testing.assert_allclose(one.store.read("head"), other.store.read("head"), atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}])
@pytest.mark.parametrize("rows", [3, 20])  # fewer numbers than the table has rows, and more
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_are_updated_as_in_the_whole_table(
    optimizer: str, rows: int, options: dict[str, Any]
) -> None:
    one, other = (opened(OPTIMIZERS[optimizer], sparse=s, **options) for s in (True, False))
    compare(one, other, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_recorded_steps_update_rows(optimizer: str) -> None:
    one = opened(OPTIMIZERS[optimizer], sparse=True, device="cuda")
    compare(one, opened(OPTIMIZERS[optimizer], sparse=False), 3)


def two_tables() -> ir.Model:
    """Two tables that share rows of gradients and numbers of rows, and a third with its own."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    ids, others = (op.input(name, "int64", ("batch", 5)) for name in ("ids", "others"))

    def weight(name: str, *sizes: int) -> Any:
        return op.initializer(name, rng.normal(0, 1, sizes).astype(np.float32))

    read = [
        op.Gather(weight("first", ROWS, SIZE), ids),
        op.Gather(weight("second", ROWS, SIZE), ids),
        op.Gather(weight("third", ROWS, SIZE), others),
    ]
    mean = op.ReduceMean(op.Tanh(op.Sum(*read)), np.array([1]), keepdims=0)
    return op.model(y=op.MatMul(mean, weight("head", SIZE, 3)))


@pytest.mark.integration
def test_tables_may_share_rows_and_indices() -> None:
    engines = [opened(optimizers.SGD(lr=0.5), sparse=s, model=two_tables()) for s in (True, False)]
    for i, feeds in enumerate(batches(3)):
        for engine in engines:
            engine.step({**feeds, "others": feeds["ids"][::-1]}, Draw(0, i, 0), 1.0)
    for name in ("first", "second", "third", "head"):
        one, other = (engine.store.read(name) for engine in engines)
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.integration
def test_rows_that_were_not_read_stay_as_they_are() -> None:
    engine = opened(optimizers.SGD(lr=0.5), sparse=True)
    before = np.array(engine.store.read("table"))
    feeds = {"ids": np.array([[3, 3, 7, 7, 3]]), "labels": np.array([1])}
    engine.step(feeds, Draw(0, 0, 0), 1.0)
    changed = (engine.store.read("table") != before).any(1)
    assert np.flatnonzero(changed).tolist() == [3, 7]


@pytest.mark.integration
def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    engine = opened(optimizers.SGD(lr=0.5), sparse=True)
    engine.store.write("head", np.full((SIZE, 3), np.nan, np.float32))
    before = np.array(engine.store.read("table"))
    done = engine.step(batches(3)[0], Draw(0, 0, 0), 1.0)
    assert done is not None and not bool(done[1])
    np.testing.assert_array_equal(engine.store.read("table"), before)


def test_the_graph_returns_rows_instead_of_the_gradient() -> None:
    engine = opened(optimizers.SGD(lr=0.5), sparse=True)
    found = with_sparse_rows(engine._graphs)
    assert [*found.tables] == ["table"] and "table_grad" not in found.graph.outputs
    assert {*found.tables["table"]} <= {*found.graph.outputs}


def test_without_rows_all_sums_are_zero() -> None:
    ids, first, sums = sum_rows(torch.zeros((3, 0, 1), dtype=torch.int64), torch.zeros(3, 0, 4), 6)
    assert ids.tolist() == first.tolist() == [*range(6)]
    assert sums.shape == (6, 4) and not sums.any()


def test_equal_rows_are_summed_at_the_first() -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(-9, 9, (12, 1), generator=generator)
    rows = torch.randn(12, 3, generator=generator)
    ids, first, sums = sum_rows(indices, rows, 50)
    dense = torch.zeros(50, 3).index_add(0, indices.reshape(-1) % 50, rows)
    torch.testing.assert_close(torch.zeros(50, 3).index_add(0, ids, sums), dense)
    torch.testing.assert_close(sums[first], dense[ids])
    assert torch.equal(ids[first], ids)
