"""Adapter files: what is saved is loaded, onto the same base alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

import onward
from onward.checkpoints import tensor_files
from onward.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMismatch,
    CheckpointMissing,
    WeightsError,
)
from onward.runner.finetune.adapter_files import load_adapter, save_adapter
from onward.runner.finetune.head import new_head
from onward.runner.finetune.lora import add_lora, merge_lora
from tests.runner.finetune.adapter_checks import moved, with_tensors
from tests.runner.finetune.finetune_models import conv_net, difference, random, run


@pytest.mark.parametrize("dora", [False, True])
def test_an_adapter_is_loaded_as_it_was_saved(tmp_path: Path, dora: bool) -> None:
    adapted = add_lora(conv_net(), 2, ["fc.*", "conv.*"], alpha=4.0, dora=dora)
    tensors, x, path = moved(adapted), random(2, 3, 6, 6), tmp_path / "a.safetensors"
    save_adapter(path, adapted, tensors)
    loaded = load_adapter(path, conv_net())
    assert loaded.settings == adapted.settings and loaded.names == adapted.names
    for name, tensor in loaded.tensors().items():
        np.testing.assert_array_equal(tensor, tensors[name])
    expected = run(with_tensors(adapted, tensors), x=x)
    assert difference(run(loaded.model, x=x), expected) == 0
    assert difference(run(merge_lora(loaded), x=x), expected) < 1e-5
    assert set(load_file(path)) == set(adapted.names)  # other tools read it too


def test_other_trained_tensors_are_saved_with_the_adapters(tmp_path: Path) -> None:
    head = new_head(conv_net(), 4)
    adapted = add_lora(head.model, 2, ["fc.*"])
    weight, path = random(5, 4, seed=9), tmp_path / "a.safetensors"
    save_adapter(path, adapted, {**moved(adapted), "head.weight": weight})
    loaded = load_adapter(path, new_head(conv_net(), 4, seed=3).model)
    for model in (loaded.model, loaded.base, merge_lora(loaded)):
        tensor = model.graph.initializers["head.weight"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), weight)


def test_float16_adapters_are_saved_in_their_type(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", random(4, 3).astype(np.float16))
    model = op.model(y=op.MatMul(op.input("x", "float16", (1, 4)), w))
    adapted = add_lora(model, 2)
    wide = {name: tensor.astype(np.float32) for name, tensor in moved(adapted).items()}
    save_adapter(tmp_path / "a.safetensors", adapted, wide)
    for name, tensor in load_adapter(tmp_path / "a.safetensors", model).tensors().items():
        np.testing.assert_array_equal(tensor, wide[name].astype(np.float16))


def test_the_file_is_small(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", random(200, 200))
    model = op.model(y=op.MatMul(op.input("x", "float32", (1, 200)), w))
    save_adapter(tmp_path / "a.safetensors", add_lora(model, 1))
    assert (tmp_path / "a.safetensors").stat().st_size < 4000


def other_model() -> ir.Model:
    op = onward.OpBuilder()
    w = op.initializer("fc.weight", random(4, 3))
    return op.model(y=op.MatMul(op.input("x", "float32", (1, 4)), w))


def test_another_base_is_refused(tmp_path: Path) -> None:
    save_adapter(tmp_path / "a.safetensors", add_lora(conv_net(), 2, ["fc.*"]))
    with pytest.raises(CheckpointMismatch, match=r"adapters of another model.*\nload it onto"):
        load_adapter(tmp_path / "a.safetensors", other_model())


def test_files_that_hold_no_adapters_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointMissing):
        load_adapter(path, conv_net())
    tensor_files.write(path, {"w": random(2)})
    with pytest.raises(CheckpointError, match="does not hold adapters\ngive a file that"):
        load_adapter(path, conv_net())
    save_adapter(path, add_lora(conv_net(), 2))
    read = tensor_files.read(path)
    wrong = {**read.properties, "settings": {"rank": 0}}
    tensor_files.write(path, read.tensors, wrong)
    with pytest.raises(CheckpointError, match="its settings are damaged"):
        load_adapter(path, conv_net())
    tensor_files.write(path, {**read.tensors, "w": random(2)}, read.properties)
    with pytest.raises(CheckpointMismatch, match="it has the tensor 'w', and the model does not"):
        load_adapter(path, conv_net())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointCorrupt):
        load_adapter(path, conv_net())


def test_tensors_that_the_base_does_not_have_are_refused(tmp_path: Path) -> None:
    adapted = add_lora(conv_net(), 2)
    with pytest.raises(WeightsError, match=r"no initializer 'fc\.bia'\ndid you mean 'fc.bias'"):
        save_adapter(tmp_path / "a", adapted, {**adapted.tensors(), "fc.bia": random(5)})
    assert not (tmp_path / "a").exists()
