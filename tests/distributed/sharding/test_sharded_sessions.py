"""A session whose tensors are sharded: checkpoints, restoring, evaluation, hooks, pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onward.distributed.parallel import Parallel
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, open_session, part

pytestmark = pytest.mark.slow  # several processes, many times

SIZES = (12, 0)
ACCUMULATED = {"options": {"accumulate": 2}}
LAYOUTS = [Parallel(shard=2, zero=zero, bucket=300) for zero in (1, 2, 3)]
LAYOUTS.append(Parallel(data=2, bucket=300))
TORCH = [("TorchExecutionProvider", {"device": "cpu"})]


def weights_of(session: Any) -> dict[str, Any]:
    return {name: np.array(tensor) for name, tensor in session.parameters.items()}


def same(found: dict[str, Any], expected: dict[str, Any], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, atol=atol, err_msg=name)


def resume(rank: int) -> list[Any]:
    """For each layout: stop in the middle of an accumulation, and go on in the next layout."""
    found = []
    feeds = [part(each, rank, (8, 4)) for each in batches(4, 12)]
    for parallel, other in zip(LAYOUTS, [*LAYOUTS[1:], LAYOUTS[0]]):
        with open_session(ACCUMULATED, parallel=parallel) as session:
            for each in feeds[:3]:
                session.step(each)
            tensors, properties = session.checkpoint()
            saved = {name: np.array(tensor) for name, tensor in tensors.items()}, properties
        with open_session(ACCUMULATED, parallel=other) as session:
            session.restore(*saved)
            session.step(feeds[3])
            found.append((saved, weights_of(session)))
    return found


def test_checkpoints_of_any_layout_continue_in_any_other() -> None:
    feeds = batches(4, 12)
    with open_session(ACCUMULATED) as session:
        for each in feeds:
            session.step(each)
        expected = weights_of(session)
    for rank in run_processes(resume, 2, timeout=900):
        for saved, resumed in rank:
            same(resumed, expected)
            with open_session(ACCUMULATED) as session:
                session.restore(*saved)
                session.step(feeds[3])
                same(weights_of(session), expected)


def use_session(rank: int, parallel: Parallel, providers: Any) -> dict[str, Any]:
    feeds = [part(each, rank, SIZES) for each in batches(4, 12)]
    found: dict[str, Any] = {}
    with open_session({"providers": providers}, parallel=parallel) as session:
        found["evaluated"] = dict(session.evaluate(feeds[0]))
        found["predicted"] = dict(session.predict({"x": feeds[0]["x"]}))
        found["forward"] = float(session.run_forward(feeds[0])["loss"])
        session.run_backward()
        session.evaluate(feeds[1])
        session.gradient_buffers()  # summed over processes, before more is added
        session.run_forward(feeds[1])
        session.run_backward()
        found["pending"] = session.get_gradients()
        session.update_weights()
        found["updated"] = weights_of(session)
        session.set_parameters({name: 0.5 * array for name, array in found["updated"].items()})
        found["halved"] = dict(session.evaluate(feeds[0]))
        session.run_forward(feeds[0])  # without a backward pass

        def spoil(buffers: list[Any]) -> None:
            if rank:
                buffers[0][0] = np.nan

        remove = session.add_gradient_hook(spoil)
        session.step(feeds[2])
        remove()
        found["spoiled"] = weights_of(session), session.skipped_steps
        session.step(feeds[2])
        found["after"] = weights_of(session)
    return found


@pytest.mark.parametrize(
    ("parallel", "providers"),
    [(LAYOUTS[0], None), (LAYOUTS[1], None), (LAYOUTS[2], None), (LAYOUTS[2], TORCH)],
    ids=["ZeRO 1", "ZeRO 2", "ZeRO 3", "ZeRO 3 in torch"],
)
def test_sessions_do_what_those_of_one_process_do(parallel: Parallel, providers: Any) -> None:
    first, second = run_processes(use_session, 2, parallel, providers, timeout=900)
    feeds = batches(4, 12)
    with open_session({"options": {"loss_scale": 1.0}}) as session:
        evaluated, predicted = session.evaluate(feeds[0]), session.predict({"x": feeds[0]["x"]})
        same(first["evaluated"], dict(evaluated))
        same(first["predicted"], dict(predicted))
        assert np.isnan(second["evaluated"]["loss"])
        assert second["predicted"]["scores"].shape == (0, 5)
        assert first["forward"] == second["forward"] == pytest.approx(evaluated["loss"], abs=1e-6)
        for each in feeds[:2]:
            session.run_forward(each)
            session.run_backward()
        pending = session.get_gradients()
        session.update_weights()
        updated = weights_of(session)
        session.set_parameters({name: 0.5 * array for name, array in updated.items()})
        halved = dict(session.evaluate(feeds[0]))
        session.step(feeds[2])
        after = weights_of(session)
    for found in (first, second):
        same(found["pending"], pending)
        same(found["updated"], updated)
        weights, skipped = found["spoiled"]
        same(weights, {name: 0.5 * array for name, array in found["updated"].items()}, 0.0)
        assert skipped == 1
        same(found["after"], after, 2e-6)
    same(first["halved"], halved)


def hold_pieces(rank: int, parallel: Parallel, optimizer: str) -> Any:
    feeds = [part(each, rank, (8, 4)) for each in batches(2, 12)]
    with open_session({"optimizer": optimizer}, parallel=parallel) as session:
        session.step(feeds[0])
        store: Any = session._engine.store
        pieces = store.own_pieces()
        copies = {name: replace(each, array=each.array.copy()) for name, each in pieces.items()}
        tensors = {name: np.array(tensor) for name, tensor in session.checkpoint()[0].items()}
        store.write_pieces((n, each.start, 2 * each.array) for n, each in copies.items())
        store.finish_writing()
        doubled = {name: np.array(tensor) for name, tensor in session.checkpoint()[0].items()}
    return copies, tensors, doubled


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("parallel", [LAYOUTS[0], LAYOUTS[2]], ids=["ZeRO 1", "ZeRO 3"])
def test_pieces_make_up_the_tensors(parallel: Parallel, optimizer: str) -> None:
    ranks = run_processes(hold_pieces, 2, parallel, optimizer, timeout=900)
    tensors, doubled = ranks[0][1:]
    joined = {name: np.full(tensor.size, np.nan) for name, tensor in tensors.items()}
    for pieces, _, _ in ranks:
        for name, piece in pieces.items():
            assert piece.shape == tensors[name].shape
            assert piece.array.ndim == 1
            where = slice(piece.start, piece.stop)
            assert np.isnan(joined[name][where]).all()  # no other process has them
            joined[name][where] = piece.array
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(joined[name].reshape(tensor.shape), tensor, err_msg=name)
        np.testing.assert_array_equal(doubled[name], 2 * tensor, err_msg=name)


def keep_16_bits(rank: int, providers: Any) -> list[Any]:
    """For each optimizer and layout: train, save, restore in the next layout, train on."""
    feeds = [part(each, rank, (8, 4)) for each in batches(4, 12)]
    found = []
    for optimizer in ("adamw in 16 bits", "lamb in 16 bits"):
        case = {"optimizer": optimizer, "providers": providers}
        for parallel, other in zip(LAYOUTS, [*LAYOUTS[1:], LAYOUTS[0]]):
            with open_session(case, parallel=parallel) as session:
                for each in feeds[:3]:
                    session.step(each)
                tensors, properties = session.checkpoint()
                saved = {name: np.array(tensor) for name, tensor in tensors.items()}
                pieces, _ = session.checkpoint_pieces()
                held = session._engine.store.bytes_held()["slots"]  # type: ignore[attr-defined]
                for name, piece in pieces.items():
                    where = slice(piece.start, piece.start + piece.array.size)
                    whole = saved[name].reshape(-1)[where]
                    np.testing.assert_array_equal(piece.array.reshape(-1), whole)
            with open_session(case, parallel=other) as session:
                session.restore(saved, properties)
                again = session.checkpoint()[0]
                assert all(np.array_equal(again[name], saved[name]) for name in saved)
                session.step(feeds[3])
                found.append((optimizer, saved, weights_of(session), held))
    return found


@pytest.mark.parametrize("providers", [None, TORCH], ids=["onnxruntime", "torch"])
def test_slots_in_16_bits_are_sharded(providers: Any) -> None:
    expected = {}
    for optimizer in ("adamw in 16 bits", "lamb in 16 bits"):
        with open_session({"optimizer": optimizer, "providers": providers}) as session:
            for each in batches(4, 12):
                session.step(each)
            expected[optimizer] = weights_of(session)
    first, second = run_processes(keep_16_bits, 2, providers, timeout=900)
    for optimizer, saved, weights, _ in (*first, *second):
        same(weights, expected[optimizer], 2e-3)
        kinds = {array.dtype.name for name, array in saved.items() if name.startswith("optimizer/")}
        assert kinds == {"bfloat16"}
    replicated = first[3][3]  # in the layout of copies
    assert first[0][3] <= replicated // 2 + 2 * 2 * 16 * 16  # and padding
