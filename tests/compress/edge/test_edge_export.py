"""export_for_edge: files of each target, the operator list of onnxruntime's tool, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.compress import export_for_edge
from onward.compress.edge import edge_export, node_timing
from onward.compress.edge.loaders import Port, write_loader
from onward.compress.edge.node_timing import NodeTime, find_package
from onward.compress.edge.ort_format import CONFIG, operators_of
from onward.compress.edge.targets import TARGETS
from onward.errors import FileExists, OptionError, PackageMissing, UnsupportedModel
from onward.graph.builder import OpBuilder


def small_model(dtype: Any = "float32", opset: int | None = None) -> ir.Model:
    op = OpBuilder() if opset is None else OpBuilder(opset)
    x = op.input("image:0", dtype, ("batch", 3, 8, 8))
    w = op.initializer("w", np.ones((4, 3, 3, 3), dtype))
    y = op.Relu(op.Conv(x, w, pads=[1, 1, 1, 1]))
    return op.model(scores=op.Flatten(op.GlobalAveragePool(y)), pixels=op.Sigmoid(y))


@pytest.mark.parametrize("target", TARGETS)
def test_files_of_a_target(target: str, tmp_path: Path) -> None:
    report = export_for_edge(small_model(), target, tmp_path / "out")
    model = f"model{TARGETS[target].suffix}"
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {model, CONFIG, "sizes.md"} < written and len(written) == 4
    assert report.files[model] == (tmp_path / "out" / model).stat().st_size
    loader = next(iter(written - {model, CONFIG, "sizes.md"}))
    text = (tmp_path / "out" / loader).read_text("utf-8")
    assert '"image:0"' in text and "scores" in text and "pixels" in text
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / model))
    assert session.get_inputs()[0].name == "image:0"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(("target", "platform"), [("minimal", None), ("android", "arm")])
def test_operator_list_equals_that_of_onnxruntimes_tool(
    target: str, platform: str | None, tmp_path: Path
) -> None:
    from onnxruntime.tools.convert_onnx_models_to_ort import (
        OptimizationStyle,
        convert_onnx_models_to_ort,
    )

    onward.save(small_model(), tmp_path / "m.onnx")
    export_for_edge(tmp_path / "m.onnx", target, tmp_path / "ours")
    convert_onnx_models_to_ort(
        tmp_path / "m.onnx",
        output_dir=tmp_path / "theirs",
        optimization_styles=[OptimizationStyle.Fixed],
        target_platform=platform,
        enable_type_reduction=True,
    )
    [theirs] = (tmp_path / "theirs").glob("*.config")
    ours = (tmp_path / "ours" / CONFIG).read_text("utf-8")

    def rows(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert rows(ours) == rows(theirs.read_text("utf-8"))
    assert "ai.onnx::Sigmoid" in operators_of(ours)


def test_the_same_model_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_for_edge(small_model(), "web", tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def custom_model() -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", (2,))
    y = op.Fancy(x, domain="mine")
    y.type, y.shape = x.type, x.shape
    return op.model(y=y)


def nchwc_model() -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", (1, 8, 2, 2))
    y = op.ReorderInput(x, domain="com.microsoft.nchwc")
    y.type, y.shape = x.type, x.shape
    return op.model(y=y)


@pytest.mark.parametrize(
    ("make", "target", "words"),
    [
        (lambda: small_model("float16"), "web", "16-bit floats"),
        (custom_model, "android", "mine::Fancy"),
        (nchwc_model, "node", "optimised for one machine"),
    ],
)
def test_what_a_target_lacks_is_named(make: Any, target: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        edge_export.check_target(make(), TARGETS[target])
    assert not list(tmp_path.iterdir())


def test_new_opsets_and_large_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    model.graph.opset_imports[""] = 99
    with pytest.raises(UnsupportedModel, match="opset 99"):
        edge_export.check_target(model, TARGETS["web"])
    monkeypatch.setattr("onward.compress.edge.targets.weight_bytes", lambda model: 3 << 30)
    with pytest.raises(UnsupportedModel, match=r"3.0 GiB, and the limit is 2 GiB"):
        edge_export.check_target(small_model(), TARGETS["web"])


def test_webgpu_has_no_64_bit_numbers() -> None:
    op = OpBuilder()
    ids = op.input("ids", "int64", ("batch",))
    model = op.model(y=op.Gather(op.initializer("w", np.ones((4, 2), np.float32)), ids))
    edge_export.check_target(model, TARGETS["web"])
    with pytest.raises(UnsupportedModel, match="'ids' has 64-bit numbers"):
        edge_export.check_target(model, TARGETS["web"], webgpu=True)


def test_folders_and_options(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(FileExists, match="not empty"):
        export_for_edge(small_model(), "web", tmp_path / "full")
    export_for_edge(small_model(), "web", tmp_path / "full", overwrite=True)
    assert (tmp_path / "full" / "mine.txt").exists()
    with pytest.raises(OptionError, match="no target 'moon'"):
        export_for_edge(small_model(), "moon", tmp_path / "x")
    with pytest.raises(OptionError, match="only web can be measured"):
        export_for_edge(small_model(), "ios", tmp_path / "x", measure=True)
    with pytest.raises(OptionError, match="no dynamic dimension 'rows'"):
        export_for_edge(small_model(), "web", tmp_path / "x", sizes={"rows": 2})
    assert not (tmp_path / "x").exists()


def test_the_fastest_candidate_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"original": NodeTime(seconds=1.0), "slow": NodeTime(seconds=1.4)}
    monkeypatch.setattr(edge_export, "find_package", lambda node_modules: tmp_path)
    monkeypatch.setattr(edge_export, "package_version", lambda package: "1.0")
    monkeypatch.setattr(edge_export, "time_in_node", lambda models, feeds, **more: times)
    models = {"slow": small_model(), "fast": small_model()}
    report = export_for_edge(small_model(), "web", tmp_path / "a", candidates=models, measure=True)
    assert report.chosen == "original" and report.speedup == 1
    times["fast"] = NodeTime(seconds=0.4)
    times["broken"] = NodeTime(error="no kernel")
    report = export_for_edge(
        small_model(), "web", tmp_path / "b", candidates=lambda model: models, measure=True
    )
    assert report.chosen == "fast" and report.speedup == 2.5
    assert any("broken does not run" in note for note in report.notes)
    assert report.to_json()["times"]["fast"]["seconds"] == 0.4 and "in Node: fast" in str(report)


def test_measuring_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(PackageMissing, match="node is not installed"):
        find_package()
    monkeypatch.setattr(shutil, "which", lambda name: "node")
    with pytest.raises(PackageMissing, match="npm install"):
        find_package(tmp_path)


def test_node_measures_models(tmp_path: Path) -> None:
    try:
        find_package()
    except PackageMissing as missing:
        pytest.skip(str(missing))
    feeds = {"image:0": np.ones((2, 3, 8, 8), np.float32)}
    models = {"one": small_model(), "other": small_model(), "bad": custom_model()}
    times = node_timing.time_in_node(models, feeds, seconds=0.02)
    assert times["one"].seconds and times["other"].similarity == pytest.approx(1)
    assert "Fancy" in times["bad"].error


def test_loaders_give_odd_names_different_variables() -> None:
    ports = [Port(name=n, type="float32", shape=("n", 2)) for n in ("a.b", "a:b", "1st")]
    for target in TARGETS:
        _, text = write_loader(target, "model.onnx", ports, ports)
        assert all(f'"{port.name}"' in text for port in ports) and "x_1st" in text
    with pytest.raises(UnsupportedModel, match=r"Kotlin.*string"):
        write_loader("android", "m", [Port(name="s", type="string", shape=())], [])
