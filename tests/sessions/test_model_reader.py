"""ModelReader: opening a session reads and scans its model once, whatever has to be checked."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import onward
from onward.errors import LimitExceeded
from onward.graph import files, paths
from onward.graph.limits import ModelLimits
from onward.graph.scan import model_scan
from onward.providers.ort import session as ort
from onward.sessions import model_reader
from tests.models import mlp, sandwich, serialized

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"
CHECKED = {"memory_limit": 1 << 30, "result_cache_bytes": 1 << 20}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often each file was read and each model's bytes were scanned."""
    counted: Counter[Any] = Counter()
    read, scan = paths.read_model, model_scan.scan_model

    def count_read(path: Path, *given: Any, **named: Any) -> bytes:
        counted["read", Path(path).name] += 1
        return read(path, *given, **named)

    def count_scan(data: bytes, *given: Any, **named: Any) -> Any:
        counted["scan", hash(data)] += 1
        return scan(data, *given, **named)

    for module in (files, model_reader):
        monkeypatch.setattr(module, "read_model", count_read)
    for module in (files, model_reader, ort):
        monkeypatch.setattr(module, "scan_model", count_scan)
    return counted


@pytest.mark.parametrize("options", [{}, CHECKED, {"own_passes": True}])
@pytest.mark.parametrize("providers", [None, [CPU], [TORCH]])
@pytest.mark.parametrize("make", [mlp, sandwich])
def test_a_file_is_read_and_scanned_once(
    tmp_path: Path, counts: Counter[Any], make: Any, providers: Any, options: dict[str, Any]
) -> None:
    onward.save(make(), tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    onward.InferenceSession(tmp_path / "m.onnx", onward.SessionOptions(**options), providers)
    assert counts["read", "m.onnx"] == 1
    assert counts["scan", hash(data)] == 1


def test_bytes_are_scanned_once(counts: Counter[Any]) -> None:
    data = serialized(mlp())
    onward.InferenceSession(data, onward.SessionOptions(**CHECKED), [CPU])
    assert counts["scan", hash(data)] == 1


@pytest.mark.integration
def test_auto_reads_the_model_once(
    tmp_path: Path, counts: Counter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = onward.OpBuilder()
    onward.save(op.model(y=op.Exp(op.input("x", "float32", (2,)))), tmp_path / "m.onnx")
    tuning = {"seconds": 0.01, "providers": [CPU], "folder": str(tmp_path / "results")}
    onward.InferenceSession(tmp_path / "m.onnx", providers=[("auto", tuning)])
    assert counts["read", "m.onnx"] == 1


def test_limits_hold_before_a_graph_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: Any) -> Any:
        raise AssertionError("the model was built")

    monkeypatch.setattr(files, "build_scanned", build)
    monkeypatch.setattr(sys.modules["onward.graph.files"], "_from_proto", build)
    onward.save(mlp(), tmp_path / "m.onnx")
    for providers in ([CPU], [TORCH]):
        options = onward.SessionOptions(limits=ModelLimits(nodes=1), **CHECKED)
        with pytest.raises(LimitExceeded, match="nodes"):
            onward.InferenceSession(tmp_path / "m.onnx", options, providers)
