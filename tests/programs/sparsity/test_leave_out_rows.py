"""Padded tokens and ignored labels are left out, and loss and gradients stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import onward
from onward import optimizers
from tests.programs.sparsity.transformers import (
    ORT,
    TORCH,
    check_same,
    feeds_of,
    lengths,
    loss_and_gradients,
    loss_of,
    session,
    transformer,
)

PROVIDERS = pytest.mark.parametrize("provider", [ORT, TORCH])
MASKS = {
    "padded": lengths(6, 2, 3),
    "left": lengths(6, 2, 3)[:, ::-1].copy(),
    "one token": lengths(1, 1, 1),
    "full": lengths(6, 6, 6),
    "empty sample": lengths(6, 0, 3),
    "numbers": lengths(6, 2, 3) * 2,
}
ENDS = [  # of a transformer, with which settings, on which engine, and the description
    ("first", {"blocks": 2}, ORT, "padding of 'mask' is left out of 44 nodes, 12 of them"),
    ("first", {}, TORCH, "padding of 'mask' is left out of 23 nodes, 6 of them"),
    ("mean", {"shape": (3, 6)}, TORCH, "padding of 'mask' is left out of 23 nodes, 6 of them"),
    ("tokens", {}, TORCH, "ignored labels of 'labels' are left out of 16 nodes, 4 of them"),
    ("all", {}, ORT, "not of others: ReduceMean"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("end", "how", "provider", "note"), ENDS)
def test_gradients_are_those_of_all_tokens(end: str, how: Any, provider: str, note: str) -> None:
    model = transformer(end, dtype=np.float64, **how)
    dense, packed = (
        session(model, loss_of(end), sparsity, provider, outputs=[]) for sparsity in ("off", "auto")
    )
    assert note in packed.describe_sparsity()
    for mask in MASKS.values():
        check_same(dense, packed, feeds_of(mask, end))


@pytest.fixture(scope="module")
def by_token() -> tuple[onward.TrainingSession, onward.TrainingSession]:
    model = transformer("tokens", causal=True, blocks=2, dtype=np.float64)
    dense = session(model, loss_of("tokens"), "off", outputs=[])
    return dense, session(model, loss_of("tokens"), "auto", outputs=[])


SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)


@pytest.mark.integration
@settings(max_examples=30, deadline=None)
@given(mask=hnp.arrays(np.int64, SHAPES, elements=st.integers(0, 1)), seed=st.integers(0, 99))
def test_gradients_are_those_of_all_tokens_for_any_mask(
    by_token: Any, mask: Any, seed: int
) -> None:
    mask[:, -1] = 1
    feeds = feeds_of(mask, "tokens", seed)
    feeds["labels"][0, -1] = 1
    check_same(*by_token, feeds)


def test_labels_of_padding_keep_all_tokens(by_token: Any) -> None:
    feeds = feeds_of(lengths(6, 2, 3), "tokens")
    feeds["labels"][1, 4] = 2
    check_same(*by_token, feeds)
    assert "mask, labels: 0% of this batch" in by_token[1].describe_sparsity(feeds)


def test_labels_that_are_all_ignored_give_no_gradients(by_token: Any) -> None:
    feeds = feeds_of(lengths(6, 2, 3), "tokens")
    feeds["labels"][:] = -1
    loss, gradients = loss_and_gradients(by_token[1], feeds)
    assert np.isnan(loss)
    assert not any(each.any() for each in gradients.values())


def test_an_empty_batch_is_skipped(by_token: Any) -> None:
    feeds = {name: np.zeros((0, 6), np.int64) for name in ("ids", "mask", "labels")}
    assert np.isnan(by_token[1].step(feeds)["loss"])


def test_float32_gradients_are_those_of_all_tokens() -> None:
    model = transformer("first")
    dense, packed = (session(model, loss_of("first"), s, TORCH) for s in ("off", "auto"))
    check_same(dense, packed, feeds_of(lengths(6, 2, 3)))


def test_scores_that_are_returned_are_zero_at_padding() -> None:
    model = transformer("tokens")
    dense, packed = (session(model, loss_of("tokens"), s, TORCH) for s in ("off", "auto"))
    assert "the scores are an output of the step" in packed.describe_sparsity()
    feeds = feeds_of(lengths(6, 2, 3), "tokens")
    expected, found = (np.asarray(s.run_forward(feeds)["scores"]) for s in (dense, packed))
    kept = feeds["mask"][..., None] == 1
    np.testing.assert_allclose(found, np.where(kept, expected, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.integration
@PROVIDERS
def test_dropout_draws_for_tokens_that_are_kept(provider: str) -> None:
    """The same steps for the same seed, whatever is in the padding."""
    model = transformer("first", dropout=0.3)
    feeds = feeds_of(lengths(6, 2, 3))
    others = {**feeds, "ids": np.where(feeds["mask"] == 1, feeds["ids"], 0)}
    runs = []
    for batch in (feeds, others):
        options = {"sparsity": "auto", "seed": 3}
        trained = onward.TrainingSession(
            model, loss_of("first"), optimizers.AdamW(lr=0.01), options, providers=[provider]
        )
        runs.append([float(np.asarray(trained.step(batch)["loss"])) for _ in range(4)])
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-6)
    assert len(set(runs[0])) == 4


def test_attention_that_hides_nothing_is_not_packed() -> None:
    packed = session(transformer("first", low=-1.0), loss_of("first"), "auto", TORCH)
    assert "no feed of shape (batch, time) hides keys of attention" in packed.describe_sparsity()
    assert packed.program.layout.derived == ()


def test_padding_that_is_read_is_not_left_out() -> None:
    """Padding that sees only padding is read by a mean over all positions."""
    packed = session(transformer("all", causal=True), loss_of("all"), "auto", TORCH)
    assert "padding is not left out: ReduceMean" in packed.describe_sparsity()


@pytest.mark.integration
def test_feeds_of_another_length_are_refused() -> None:
    packed = session(transformer("first"), loss_of("first"), "auto")
    feeds = feeds_of(lengths(6, 2, 3))
    with pytest.raises(onward.errors.FeedError):
        packed.step({**feeds, "ids": feeds["ids"][:, :4]})


@pytest.mark.integration
def test_a_saved_program_leaves_out_padding(tmp_path: Any) -> None:
    model, options = transformer("first", dtype=np.float64), {"sparsity": "auto"}
    program = onward.compile_training(model, loss_of("first"), optimizers.SGD(lr=0.1), options)
    program.save(tmp_path / "program")
    loaded = onward.TrainingSession(tmp_path / "program")
    assert "padding of 'mask' is left out" in loaded.describe_sparsity()
    check_same(session(model, loss_of("first"), "off"), loaded, feeds_of(lengths(6, 2, 3)))


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(onward.errors.OptionError, match="'off', 'auto' or a Sparsity, not 'on'"):
        onward.TrainingOptions(sparsity="on")
