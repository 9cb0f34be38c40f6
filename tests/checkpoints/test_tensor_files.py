"""Checkpoint files are read as they were written, or an error names what is damaged."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from onward.checkpoints.disk import DISK, RealDisk
from onward.checkpoints.tensor_files import (
    TensorMetadata,
    read,
    read_header,
    remove_abandoned_files,
    write,
)
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, OnwardError

W = np.arange(6, dtype=np.float32).reshape(2, 3)

PLAIN = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8"]
EXTENDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]

shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
orders = st.sampled_from(["<", ">", "="])


@st.composite
def tensors(draw: Any) -> Any:
    """Arrays of every type and byte order, contiguous or not."""
    shape = draw(shapes)
    kind = draw(st.sampled_from([*PLAIN, *EXTENDED]))
    if kind in EXTENDED:
        size = np.dtype(getattr(ml_dtypes, kind)).itemsize
        bits = draw(npst.arrays(f"u{size}", shape))
        array = bits.view(getattr(ml_dtypes, kind))
    else:
        array = draw(npst.arrays(np.dtype(kind).newbyteorder(draw(orders)), shape))
    if draw(st.booleans()):
        array = array.T
    if array.ndim and draw(st.booleans()):
        array = array[::-2]
    return array


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.text(st.characters(codec="utf-8"), max_size=8).filter(
    lambda name: name != "__metadata__"
)


class Unsynced(RealDisk):
    """A disk that skips syncs."""

    def sync(self, file: Any) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...


@pytest.mark.integration
@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(names, tensors(), max_size=5),
    st.dictionaries(st.text(), json_values, max_size=3),
)
def test_write_then_read_is_identity(given: dict[str, Any], properties: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        digest = write(path, given, properties, step=7, metric=0.25, disk=Unsynced())
        found, seen = read(path), read_header(path)
        assert list(found.tensors) == list(given) == list(seen.tensors)
        for name, tensor in given.items():
            back = found.tensors[name]
            assert back.dtype == tensor.dtype.newbyteorder("=") and back.shape == tensor.shape
            assert back.tobytes() == tensor.astype(back.dtype).tobytes()
            assert back.flags.writeable and back.flags.c_contiguous and back.dtype.isnative
            assert seen.tensors[name] == TensorMetadata(tensor.dtype.name, tensor.shape)
        assert found.properties == properties == seen.properties
        assert (found.step, found.metric, found.path) == (7, 0.25, path)
        assert found.sha256 == seen.sha256 == digest
        assert os.listdir(folder) == ["c"]


def test_safetensors_package_reads_it(tmp_path: Path) -> None:
    given = {"b": np.array(True), "w": W.T, "n": np.zeros((0, 2)), "i": np.arange(3, dtype=">i2")}
    write(tmp_path / "c", given, {"epoch": 3})
    found = load_file(tmp_path / "c")
    assert all(np.array_equal(found[name], given[name]) for name in given)
    with safe_open(tmp_path / "c", "np") as file:
        assert json.loads(file.metadata()["onward.properties"]) == {"epoch": 3}


def test_bfloat16_is_read_by_the_safetensors_package(tmp_path: Path) -> None:
    write(tmp_path / "c", {"w": np.ones((2, 3), ml_dtypes.bfloat16)}, {})
    with safe_open(tmp_path / "c", "np") as file:
        assert file.get_slice("w").get_dtype() == "BF16"
        assert file.get_slice("w").get_shape() == [2, 3]


def test_nan_and_infinity_are_allowed_in_properties(tmp_path: Path) -> None:
    write(tmp_path / "c", {}, {"best": float("inf"), "loss": float("nan"), "betas": (0.9, 0.99)})
    found = read(tmp_path / "c").properties
    assert found["best"] == float("inf") and np.isnan(found["loss"])
    assert found["betas"] == [0.9, 0.99]


def test_write_does_not_copy_large_tensors(tmp_path: Path) -> None:
    tensor = np.zeros((4096, 4096), np.float32)  # 64 MiB
    for seen in (tensor, tensor.T):
        tracemalloc.start()
        write(tmp_path / "c", {"w": seen}, {})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20


# -- damage ----------------------------------------------------------------------------------------


def damaged(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def data_start(path: Path) -> int:
    return 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]


@pytest.mark.integration
def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write(path, {"w": np.arange(2, dtype=np.float32), "b": np.ones(3, np.int8)}, {"e": 1})
    whole, start = path.read_bytes(), data_start(path)
    for offset in range(len(whole)):
        damaged(path, offset, offset % 8)
        part = "the header" if offset < start else "tensor 'w'" if offset < start + 8 else "'b'"
        with pytest.raises(CheckpointCorrupt, match=part):
            read(path)
        path.write_bytes(whole)
    assert read(path).properties == {"e": 1}


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write(path, {"w": np.arange(2, dtype=np.float32), "b": np.ones(3, np.int8)}, {})
    whole, start = path.read_bytes(), data_start(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        part = "the header" if size < start else "'w' ends" if size < start + 8 else "'b' ends"
        with pytest.raises(CheckpointCorrupt, match=part):
            read(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(CheckpointCorrupt, match="4 bytes follow the last tensor"):
        read(path)


def test_damaged_tensor_is_named(tmp_path: Path) -> None:
    write(tmp_path / "c", {"w": W}, {})
    damaged(tmp_path / "c", data_start(tmp_path / "c"))
    with pytest.raises(CheckpointCorrupt) as caught:
        read(tmp_path / "c")
    assert str(caught.value) == (
        f"{tmp_path / 'c'}: tensor 'w' is damaged: its SHA-256 does not match\n"
        "read the checkpoint before it"
    )
    assert read_header(tmp_path / "c").tensors == {"w": TensorMetadata("float32", (2, 3))}


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"w": W}, tmp_path / "plain")
    with pytest.raises(CheckpointCorrupt, match="is not a checkpoint of Onward's"):
        read(tmp_path / "plain")
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(CheckpointCorrupt, match="the header does not fit"):
        read(tmp_path / "short")
    (tmp_path / "absurd").write_bytes(struct.pack("<Q", 1 << 62) + bytes(100))
    with pytest.raises(CheckpointCorrupt, match=r"the header does not fit.* 108 bytes"):
        read_header(tmp_path / "absurd")


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="cannot be read: not an ordinary file"):
            read(path)


def test_missing_file_is_checkpoint_missing(tmp_path: Path) -> None:
    write(tmp_path / "step-1.safetensors", {})
    for path, advice in (
        (tmp_path / "step-2.safetensors", "did you mean 'step-1.safetensors'"),
        (tmp_path / "other.safetensors", "check the path: .* has 'step-1.safetensors'"),
        (tmp_path / "no" / "c", "there is no folder .*no: check the path"),
        (tmp_path / "step-1.safetensors" / "c", "there is no folder .*: check the path"),
    ):
        for reads in (read, read_header):
            with pytest.raises(
                CheckpointMissing, match=f"there is no such file\n{advice}"
            ) as caught:
                reads(path)
            assert isinstance(caught.value, FileNotFoundError)
            assert not isinstance(caught.value, CheckpointCorrupt)


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"but a folder\ngive the path of a file in it, or"):
        read(tmp_path)


# -- refused contents ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"w": [1, 2]}, "'w' is a list, but a checkpoint holds numpy arrays\nconvert it with nump"),
        ({"w": np.array(["a"])}, "'w' is of <U1, which a checkpoint cannot hold\nit can hold bfl"),
        ({"w": np.ones(2, np.complex128)}, "'w' is of complex128, which a checkpoint cannot hold"),
        ({"__metadata__": W}, "a tensor's name must be a text other than '__metadata__'"),
        ({3: W}, "a tensor's name must be a text other than '__metadata__', not 3"),
        ({"\ud800": W}, r"the tensor's name '\\ud800' is not valid Unicode"),
    ],
)
def test_unsupported_tensors_are_refused(tmp_path: Path, given: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        write(tmp_path / "c", given, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": {"b": [1, W]}}, r"properties\['a'\]\['b'\]\[1\] is a ndarray, which JSON does not"),
        ({"lr": np.float32(1)}, r"properties\['lr'\] is a float32, which JSON does not have"),
        ({"a": {1: 2}}, r"properties\['a'\] has the key 1, but JSON's keys are texts"),
    ],
)
def test_properties_must_be_json(tmp_path: Path, given: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        write(tmp_path / "c", {"w": W}, given)
    assert os.listdir(tmp_path) == []


@pytest.mark.integration
def test_too_large_properties_are_refused(tmp_path: Path) -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(CheckpointError, match="nested more than 100 deep"):
        write(tmp_path / "c", {}, {"deep": deep})
    with pytest.raises(CheckpointError, match=r"a header of .* more than the 104,857,600"):
        write(tmp_path / "c", {}, {"long": "x" * (101 << 20)})


# -- atomic writes ---------------------------------------------------------------------------------


class FailingDisk(RealDisk):
    """A disk on which one operation fails."""

    def __init__(self, operation: str, number: int, free: int = 1 << 40) -> None:
        def fail(*_: Any) -> Any:
            raise OSError(number, os.strerror(number))

        setattr(self, operation, fail)
        self._free = free

    def free(self, folder: Path) -> int:
        return self._free


@pytest.mark.parametrize(
    ("operation", "number", "text"),
    [
        (
            "names",
            errno.EIO,
            r"/c is not saved: Input/output error \(while making room\); what was",
        ),
        (
            "create",
            errno.EACCES,
            r"Permission denied \(while creating a file\).*\nlet this process",
        ),
        (
            "write",
            errno.EIO,
            r"\(while writing\); what was saved before is untouched\ncheck the d",
        ),
        ("sync", errno.EIO, r"is not saved: Input/output error \(while syncing\)"),
        ("commit", errno.EIO, r"is not saved: Input/output error \(while renaming\)"),
        ("write", errno.ENOENT, r"No such file or directory.*\nmake the folder .* first"),
    ],
)
def test_failed_write_keeps_the_old_file(
    tmp_path: Path, operation: str, number: int, text: str
) -> None:
    write(tmp_path / "c", {"w": W}, {})
    with pytest.raises(CheckpointError, match=text):
        write(tmp_path / "c", {"w": W + 1}, {}, disk=FailingDisk(operation, number))
    assert os.listdir(tmp_path) == ["c"]
    assert np.array_equal(read(tmp_path / "c").tensors["w"], W)


def test_full_disk_error_says_how_much_to_free(tmp_path: Path) -> None:
    size = len(write(tmp_path / "c", {"w": W}, {})) and (tmp_path / "c").stat().st_size
    full = FailingDisk("write", errno.ENOSPC, free=100)
    with pytest.raises(CheckpointError) as caught:
        write(tmp_path / "c", {"w": W}, {}, disk=full)
    assert str(caught.value) == (
        f"{tmp_path / 'c'} is not saved: No space left on device (while writing); "
        "what was saved before is untouched\n"
        f"free {size - 100:,} bytes on the disk of {tmp_path}: {size:,} are needed"
    )
    with pytest.raises(CheckpointError, match="or raise this process's quota"):
        write(tmp_path / "c", {"w": W}, {}, disk=FailingDisk("sync", errno.EDQUOT))

    def silent(folder: Path) -> int:
        raise OSError(errno.EIO, "no answer")

    full.free = silent  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=rf"\nfree {size:,} bytes on the disk of"):
        write(tmp_path / "c", {"w": W}, {}, disk=full)


def test_failed_folder_sync_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is written, but a loss of power may undo it: Inpu"):
        write(tmp_path / "c", {"w": W}, {}, disk=FailingDisk("sync_folder", errno.EIO))
    assert np.array_equal(read(tmp_path / "c").tensors["w"], W)


def test_missing_folder_error_says_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not saved: No such file.*\nmake the folder"):
        write(tmp_path / "nowhere" / "c", {"w": W}, {})


def test_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    class Interrupted(RealDisk):
        def sync(self, file: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "c", {"w": W}, {}, disk=Interrupted())
    assert os.listdir(tmp_path) == []


def test_read_error_is_not_reported_as_damage(tmp_path: Path) -> None:
    write(tmp_path / "c", {"w": W}, {})
    with pytest.raises(CheckpointError, match="cannot be read: Input/output error") as caught:
        read(tmp_path / "c", disk=FailingDisk("read", errno.EIO))
    assert not isinstance(caught.value, CheckpointCorrupt)
    assert isinstance(caught.value, OnwardError) and isinstance(caught.value, ValueError)


def test_only_abandoned_files_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / ".onward-00000000000000aa.part"
    dead.write_bytes(b"half")
    others = [tmp_path / ".onward-mine.part", tmp_path / "x.part"]
    for other in others:
        other.write_bytes(b"not ours")
    alive = DISK.create(tmp_path / ".onward-00000000000000bb.part")
    write(tmp_path / "c", {"w": W}, {})
    assert {*os.listdir(tmp_path)} == {"c", alive.path.name, *(other.name for other in others)}
    DISK.close(alive)
    remove_abandoned_files(tmp_path, DISK)
    assert not alive.path.exists()


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(b"")
    write(tmp_path / "c", {"w": W}, {})
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("any", "c")]
    assert modes[0] == modes[1]


# -- imports ---------------------------------------------------------------------------------------

HEAVY = {"onnx", "onnx_ir", "onnxscript", "torch", "onnxruntime", "ml_dtypes", "rich", "typer"}


def test_import_loads_numpy_only(tmp_path: Path) -> None:
    code = f"""
import sys
from onward.checkpoints import tensor_files, folder, model_match
tensor_files.write({str(tmp_path / "c")!r}, {{}}, {{}})
tensor_files.read({str(tmp_path / "c")!r})
print(*{{name.split(".")[0] for name in sys.modules}})
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert not set(done.stdout.split()) & HEAVY


def test_missing_ml_dtypes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", {"w": np.ones(2, ml_dtypes.bfloat16)}, {})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(
        CheckpointError, match=r"bfloat16 need a package.*\n.*pip install ml_dtypes"
    ):
        read(tmp_path / "c")
    assert read_header(tmp_path / "c").tensors["w"].dtype == "bfloat16"


def test_devices_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(
        CheckpointError, match=r"pipe is not saved: it is a device, a pipe or a socket"
    ):
        write(pipe, {"w": np.arange(3)})
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Is a directory .*\ngive the name of a file"):
        write(tmp_path, {"w": np.arange(3)})
    assert not os.listdir(tmp_path)


def test_a_name_that_is_too_long_says_so(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(
        CheckpointError, match=r"is not saved: File name too long .*\ngive a shorter"
    ):
        write(path, {"w": np.arange(3)})
    with pytest.raises(
        CheckpointError, match=r"cannot be read: File name too long\ncheck the path"
    ):
        read(path)
    assert not os.listdir(tmp_path)
