"""Which operators run where: asked once, remembered, and true."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onward.measure import operator_support
from onward.measure.operator_support import Operator, known_operators, operators
from onward.providers.choose import OWN_PROVIDERS
from onward.providers.operator_examples import example, newest_opsets

CPU, TORCH, REFERENCE = (f"{name}ExecutionProvider" for name in ("CPU", "Torch", "Reference"))


def found(folder: Path, *providers: str) -> dict[tuple[str, str], Operator]:
    rows = operators(providers, folder=folder)
    return {(row.domain, row.name): row for row in rows}


def test_providers_are_asked(tmp_path: Path) -> None:
    rows = found(tmp_path, CPU, TORCH, REFERENCE)
    assert rows["ai.onnx", "Conv"].runs == {CPU: True, TORCH: True, REFERENCE: True}
    assert rows["ai.onnx", "Mish"].runs[CPU]  # by its function: onnxruntime has no kernel of it
    assert rows["com.microsoft", "FusedMatMul"].runs == {CPU: True, TORCH: True, REFERENCE: False}
    assert not rows["ai.onnx.ml", "TreeEnsemble"].runs[TORCH]
    assert not rows["ai.onnx", "LinearAttention"].runs[CPU]


def test_answers_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = operators([REFERENCE], folder=tmp_path)
    monkeypatch.setattr(operator_support, "_ask", lambda *_: pytest.fail("it asked again"))
    assert operators([REFERENCE], folder=tmp_path) == first


def test_progress_is_reported(tmp_path: Path) -> None:
    shown: list[str] = []
    operators([REFERENCE], folder=tmp_path, progress=shown.append)
    assert shown == [REFERENCE]


def test_every_operator_has_an_example_of_the_newest_opset() -> None:
    without = []
    for domain, name in known_operators():
        if domain not in newest_opsets():
            continue
        try:
            node = example(domain, name)
        except (KeyError, ValueError):
            without.append(name)
            continue
        assert node.op_type == name and all(value.type is not None for value in node.outputs)
    assert sorted(without) == ["CastMap", "DictVectorizer", "ZipMap"]  # maps, which onnx-ir lacks


def test_deprecated_operators_are_not_listed() -> None:
    assert ("", "Upsample") not in known_operators()
    assert onnx.defs.get_schema("Upsample").deprecated


def test_operators_of_no_list_are_unknown(tmp_path: Path) -> None:
    if "OpenVINOExecutionProvider" not in OWN_PROVIDERS:
        pytest.skip("this onnxruntime has an OpenVINO of its own")
    pytest.importorskip("openvino")
    assert (
        operator_support._ask(("com.microsoft", "FusedMatMul"), "OpenVINOExecutionProvider") is None
    )
