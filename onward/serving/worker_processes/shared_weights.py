"""Weights that the worker processes of one model share: one file, mapped by all of them.

onnxruntime maps external data, but then packs weights for its matrix products into memory of its
own, unless the packed form is in the file, too. So the model is optimised once, and written with
its packed weights to a cache folder; workers open that file, and hold nothing of it themselves.

16 matrix products of 2048 x 2048, 256 MB of weights, 3 workers; memory of all of them (PSS):

    weights in the .onnx file               1185 MB     79 ms a run
    external data                            849 MB     79 ms       packed by each worker
    external data, not packed                339 MB    236 ms
    packed weights in the file               429 MB     75 ms       this module

Shared: all weights, packed or not. Not shared: the graph, activations, the arena, Python itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.graph.limits import ModelLimits
from onward.graph.paths import read_model
from onward.graph.random_feeds import random_feeds
from onward.graph.scan.model_scan import scan_model
from onward.measure.machine import cache_folder, digest, machine, versions
from onward.providers.options import GraphOptimizationLevel, SessionOptions
from onward.providers.ort import session as ort
from onward.sessions.inference import InferenceSession
from onward.sessions.ort_plan import OrtPlan
from onward.workers.worker import Worker

CPU = ["CPUExecutionProvider"]
MIN_BYTES = 16 << 20  # of a model's files; below, a copy for each worker costs little
_MODEL, _DATA, _UNSHARED = "model.onnx", "model.data", "unshared"
_MAX_AGE = 30 * 86400.0  # seconds; entries that were not used for so long are removed
_TIMEOUT = 600.0  # seconds to write an entry
_MIN_TENSOR = "1024"  # bytes; smaller tensors stay in the model's file


def model_files(path: Path) -> list[Path]:
    """The file of a model and those of its external data."""
    if path.suffix != ".onnx":
        return [path]
    limits = ModelLimits()
    scan = scan_model(read_model(path, limits.file_bytes), limits, any_domain=True, name=str(path))
    names = {str(each.external["location"]) for each in scan.external if each.external}
    return [path, *(path.parent / name for name in sorted(names))]


def file_states(files: list[Path]) -> list[list[Any]]:
    """What changes when one of the files does: identity, size and time of the last change."""
    found = []
    for file in files:
        state = file.stat()
        found.append([str(file), state.st_ino, state.st_size, state.st_mtime_ns])
    return found


def shared_model(path: Path, files: list[Path], folder: Path | None = None) -> Path | None:
    """The file that workers open instead of `path`; None if they cannot share its weights.

    `files` are the model's (`model_files`). It is written by a process of its own if the cache
    (`folder`) does not have it: a model that crashes when it is opened does not end the server.
    """
    folder = folder or cache_folder("shared_weights")
    states = file_states(files)
    if sum(size for _, _, size, _ in states) < MIN_BYTES:
        return None
    entry = folder / digest(states, machine(), versions())
    if not entry.exists() and not _write_entry(path, entry):
        return None
    if not (entry / _MODEL).exists():
        return None
    os.utime(entry)
    return entry / _MODEL


def _write_entry(path: Path, entry: Path) -> bool:
    """Write an entry of the cache, complete or not at all; False: the folder is not writable."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(entry.parent, time.time())
        made = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".new-"))
    except OSError:
        return False
    try:
        if not _pack_weights(path, made):
            shutil.rmtree(made)
            made.mkdir()
            (made / _UNSHARED).touch()
        os.rename(made, entry)
    except OSError:  # another process was faster, or the disk is full
        return entry.exists()
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True


def _pack_weights(path: Path, folder: Path) -> bool:
    """Write the shared model in a process of its own; whether that was possible."""
    with Worker(
        "onward.serving.worker_processes.worker_process", "the process that packs weights"
    ) as child:
        request = {"do": "write_shared", "path": str(path), "folder": str(folder)}
        try:
            reply, _ = child.ask(request, timeout=_TIMEOUT)
        except OnwardError:
            return False  # opening the model itself will say why
    return reply.get("is_shared") is True


def _remove_old(folder: Path, now: float) -> None:
    for each in folder.iterdir():
        if now - each.stat().st_mtime > _MAX_AGE:
            shutil.rmtree(each, ignore_errors=True)


# -- in the child ----------------------------------------------------------------------------------


def write_shared_model(path: str, folder: str) -> bool:
    """Write the optimised model and its packed weights; whether its answers are the same bits.

    False, too, if the model does not run as a whole in onnxruntime on the processor.
    """
    options = SessionOptions(
        optimized_model_filepath=os.path.join(folder, _MODEL),
        log_severity_level=3,  # it warns that the file fits only this machine, which is the key
        config_entries={
            "session.optimized_model_external_initializers_file_name": _DATA,
            "session.optimized_model_external_initializers_min_size_in_bytes": _MIN_TENSOR,
            "session.save_external_prepacked_constant_initializers": "1",
        },
    )
    session = InferenceSession(path, options)
    whole = session._plan.native is not None and session.get_providers() == CPU
    written = all(os.path.exists(os.path.join(folder, name)) for name in (_MODEL, _DATA))
    if not whole or not written:
        return False
    feeds = random_feeds(session.get_inputs())
    expected, again = session.run(None, feeds), session.run(None, feeds)
    session.close()
    if not _same_bits(expected, again):  # it draws random numbers
        return False
    shared = open_shared_model(os.path.join(folder, _MODEL), SessionOptions(), CPU)
    return _same_bits(expected, shared.run(None, feeds))


def open_shared_model(
    path: str, options: SessionOptions, providers: Any, weights: None = None
) -> OrtPlan:
    """Open a file that `write_shared_model` wrote; onnxruntime maps its weights."""
    native = replace(options, graph_optimization_level=GraphOptimizationLevel.ORT_DISABLE_ALL)
    return OrtPlan(ort.create(path, native, [(name, {}) for name in CPU]), native)


def _same_bits(first: list[Any], second: list[Any]) -> bool:
    return all(
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and (a.dtype, a.shape) == (b.dtype, b.shape)
        and (a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist())
        for a, b in zip(first, second, strict=True)
    )
