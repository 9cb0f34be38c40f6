"""The peer's checkpoint files: read completely, and refused when they are damaged."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints import peer_files
from onward.errors import CheckpointCorrupt, CheckpointError
from onward.training.api import CheckpointState, Module
from tests.training.api.made import Folder, batch
from tests.training.api.peer_writer import write_peer

RNG = np.random.default_rng(0)
TRAINABLE = {
    "fc1.weight": RNG.normal(size=(8, 4)).astype(np.float32),
    "fc1.bias": RNG.normal(size=8).astype(np.float32),
    "fc2.weight": RNG.normal(size=(3, 8)).astype(np.float32),
    "fc2.bias": RNG.normal(size=3).astype(np.float32),
}
FROZEN = {"table": np.arange(6).reshape(2, 3), "scalar": np.float32(2.5).reshape(())}
PROPERTIES = {"epoch": 3, "loss": 0.5, "name": "größe", "big": 2**40}
MOMENTS = {name: [np.ones_like(a), np.full_like(a, 2)] for name, a in TRAINABLE.items()}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_parameters_and_properties_are_read(tmp_path: Path, external: bool, version: int) -> None:
    path = tmp_path / "checkpoint"
    write_peer(path, TRAINABLE, FROZEN, properties=PROPERTIES, external=external, version=version)
    assert peer_files.is_peer_file(path)
    state = CheckpointState.load_checkpoint(path)
    for name, array in (TRAINABLE | FROZEN).items():
        parameter = state.parameters[name]
        assert parameter.requires_grad == (name in TRAINABLE)
        assert parameter.data.dtype == array.dtype
        np.testing.assert_array_equal(parameter.data, array)
    assert dict(state.properties) == PROPERTIES


def test_training_continues_from_a_peer_checkpoint(whole: Folder, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_peer(path, TRAINABLE, {}, optimizer=(7, 0.25, MOMENTS))
    state, module, optimizer = whole.open(path)
    assert optimizer.get_learning_rate() == 0.25 and optimizer._stored.step == 7
    assert optimizer._stored.slots["first_order_moments"]["fc1.bias"].tolist() == [1] * 8
    assert optimizer._stored.slots["second_order_moments"]["fc1.bias"].tolist() == [2] * 8
    module(*batch())
    optimizer.step()
    CheckpointState.save_checkpoint(state, tmp_path / "ours", include_optimizer_state=True)
    assert whole.open(tmp_path / "ours")[2]._stored.step == 8


def test_nominal_peer_file_has_names_without_data(whole: Folder, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_peer(path, TRAINABLE, {}, nominal=True)
    state = CheckpointState.load_checkpoint(path)
    module = Module(whole.training, state)
    with pytest.raises(RuntimeError, match="Please load the parameter states first"):
        _ = state.parameters["fc1.weight"]
    module.copy_buffer_to_parameters(np.ones(67, np.float32))
    assert np.isfinite(module(*batch()))


def test_newer_versions_are_refused(tmp_path: Path) -> None:
    write_peer(tmp_path / "c", TRAINABLE, {}, version=9)
    with pytest.raises(CheckpointError, match="in version 9\nversions 1 to 3 are known"):
        CheckpointState.load_checkpoint(tmp_path / "c")


def test_missing_and_short_data_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_peer(path, TRAINABLE, {}, external=True)
    data = tmp_path / "c.data"
    data.write_bytes(data.read_bytes()[:-40])
    with pytest.raises(CheckpointCorrupt, match=r"ends after the end of c.data\ncopy it again"):
        CheckpointState.load_checkpoint(path)
    data.unlink()
    with pytest.raises(CheckpointCorrupt, match=r"lies in c\.data, which is not there"):
        CheckpointState.load_checkpoint(path)


def test_every_truncation_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_peer(path, TRAINABLE, FROZEN, properties=PROPERTIES, optimizer=(7, 0.25, MOMENTS))
    whole = path.read_bytes()
    for size in range(8, len(whole), 23):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            CheckpointState.load_checkpoint(path)


def test_damaged_bytes_are_a_clear_error_or_other_numbers(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_peer(path, {"w": TRAINABLE["fc2.bias"]}, FROZEN, properties=PROPERTIES)
    whole, chance = path.read_bytes(), random.Random(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.randrange(8, len(damaged))] = chance.choice((0, 1, 127, 128, 255))
        path.write_bytes(damaged)
        try:
            CheckpointState.load_checkpoint(path)
        except CheckpointError:
            continue


def test_tensors_that_overlap_cannot_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "c"
    many = {f"w{i:04}": np.zeros(1000, np.float32) for i in range(50)}
    write_peer(path, many, {}, external=True)
    (tmp_path / "c.data").write_bytes(bytes(50 * 4003 - 9000))
    with pytest.raises(CheckpointCorrupt, match="ends after the end"):
        CheckpointState.load_checkpoint(path)


def test_two_parameters_of_one_name_and_odd_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_peer(path, {"w": TRAINABLE["fc2.bias"]}, {"w": TRAINABLE["fc2.bias"]})
    with pytest.raises(CheckpointCorrupt, match="two parameters are called 'w'"):
        CheckpointState.load_checkpoint(path)
    write_peer(path, {"w": TRAINABLE["fc2.bias"].astype(np.float16)}, {})
    damaged = path.read_bytes().replace((10).to_bytes(4, "little"), (8).to_bytes(4, "little"))
    path.write_bytes(damaged)
    with pytest.raises(CheckpointCorrupt):
        CheckpointState.load_checkpoint(path)
