"""Malicious models: files that are not models, and weights that are not weights."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from conformance.reliability.corpus import (
    case,
    model,
    node,
    ones,
    varint,
    weighted,
    written,
)
from conformance.reliability.corpus_growth import a_constant_of_a_huge_shape

GROWS = "ModelLimits.folded_elements"

# -- files that are not models ---------------------------------------------------------------------


def file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@case("InvalidModel", "no graph")
def an_empty_file(folder: Path) -> Any:
    return file(folder, "model.onnx", b"")


@case("InvalidModel", "not an ONNX model")
def a_file_that_is_cut_off(folder: Path) -> Any:
    whole = written(model([node("Add", ["x", "w"], ["y"])], [ones("w", 2)]))
    return file(folder, "model.onnx", whole[: len(whole) // 2])


@case("InvalidModel", "not an ONNX model")
def an_archive_instead_of_a_model(folder: Path) -> Any:
    path = folder / "model.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.onnx", bytes(100))
    return path


@case("InvalidModel", "not an ONNX model")
def a_length_that_does_not_end(folder: Path) -> Any:
    return b"\x3a" + b"\xff" * 100


@case("InvalidModel", "not an ONNX model")
def a_length_beyond_the_file(folder: Path) -> Any:
    return b"\x08\x0a\x3a" + varint(1 << 40) + bytes(10)


@case("InvalidModel", "not a file")
def a_device_instead_of_a_model(folder: Path) -> Any:
    return Path("/dev/zero")


@case("InvalidModel", "is not an ONNX model in the form of textproto")
def text_that_nests_without_end(folder: Path) -> Any:
    deep = "graph { node { attribute { g { " + "node { attribute { g { " * 20_000
    return file(folder, "model.textproto", deep.encode())


@case("InvalidModel", "is not an ONNX model in the form of json")
def json_that_nests_without_end(folder: Path) -> Any:
    return file(folder, "model.json", b'{"graph":{"node":' + b"[" * 200_000)


@case("LimitExceeded", GROWS)
def a_bomb_in_text(folder: Path) -> Any:
    bomb = onnx.load_model_from_string(a_constant_of_a_huge_shape(folder))
    onnx.save(bomb, folder / "model.textproto")
    return folder / "model.textproto"


@case("LimitExceeded", "ModelLimits.text_bytes")
def text_beyond_all_bounds(folder: Path) -> Any:
    path = folder / "model.textproto"
    with path.open("wb") as handle:
        handle.truncate(1 << 29)
    return path


@case("InvalidModel", "onnxruntime cannot load this ORT-format model")
def an_ort_format_of_noise(folder: Path) -> Any:
    noise = np.random.default_rng(0).integers(0, 256, 4096, np.uint8).tobytes()
    return file(folder, "model.ort", noise[:4] + b"ORTM" + noise)


@case("LimitExceeded", "mentions EPContext")
def an_ort_format_with_an_engines_program(folder: Path) -> Any:
    return file(folder, "model.ort", bytes(4) + b"ORTM" + bytes(64) + b"EPContext" + bytes(64))


@case("InvalidModel", "is not a torch.export program")
def a_program_of_noise(folder: Path) -> Any:
    return file(folder, "model.pt2", bytes(range(256)) * 16)


@case("InvalidModel", "unpack to")
def a_program_that_unpacks_without_end(folder: Path) -> Any:
    path = folder / "model.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(100 << 20))
    return path


# -- weights that are not weights ------------------------------------------------------------------


def safetensors(folder: Path, header: bytes, data: bytes = bytes(8), length: int = -1) -> Any:
    size = len(header) if length < 0 else length
    weights = file(folder, "w.safetensors", struct.pack("<Q", size) + header + data)
    return weighted(folder, ones("w", 2)), weights


@case("WeightsError", "is not a safetensors file")
def weights_with_a_header_beyond_the_file(folder: Path) -> Any:
    return safetensors(folder, b"{}", length=1 << 62)


@case("WeightsError", "is not a safetensors file")
def weights_with_a_header_that_nests_without_end(folder: Path) -> Any:
    return safetensors(folder, b"[" * 1_000_000)


@case("WeightsError", "ends at byte")
def weights_beyond_their_file(folder: Path) -> Any:
    return safetensors(folder, b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}')


@case("WeightsError", "overlap")
def weights_that_overlap(folder: Path) -> Any:
    entry = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    return safetensors(folder, b'{"w":' + entry + b',"v":' + entry + b"}")


@case("WeightsError", "is broken")
def weights_of_negative_size(folder: Path) -> Any:
    return safetensors(folder, b'{"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}')


@case("WeightsError", "is broken")
def weights_whose_shape_is_text(folder: Path) -> Any:
    return safetensors(folder, b'{"w":{"dtype":"F32","shape":["n"],"data_offsets":[0,8]}}')


@case("WeightsError", "bytes for")
def weights_of_a_monstrous_shape(folder: Path) -> Any:
    return safetensors(
        folder, b'{"w":{"dtype":"F32","shape":[%d],"data_offsets":[0,8]}}' % (1 << 62)
    )
