"""profile_model from end to end, on every engine; the ceilings are given, not measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError, WriteFailed
from onward.graph.builder import OpBuilder
from onward.measure.profile import report
from onward.measure.profile.report import Profile, profile_model
from onward.measure.profile.roofline import Ceilings
from onward.measure.profile.timed_runs import with_names
from onward.measure.profile.trace import PART
from tests.models import mlp, sandwich, serialized

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"
REFERENCE, INDUCTOR = "ReferenceExecutionProvider", "InductorExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


@pytest.fixture(autouse=True)
def _given_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(*_: Any, **__: Any) -> Ceilings:
        return Ceilings({"float32": 1e10}, 1e10, 1e-6)

    monkeypatch.setattr(report, "find_ceilings", given)


def profiled(model: Any, *providers: str, **more: Any) -> Profile:
    given = {"iterations": 3, "warm_up": 1, **more}
    return profile_model(model, providers=list(providers) or None, **given)


def convnet() -> ir.Model:
    """A convolution, its activation, a pool and a product: what engines fuse and pack."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=20)
    x = op.input("x", "float32", ("batch", 3, 16, 16))
    w = op.initializer("w", rng.normal(size=(16, 3, 3, 3)).astype(np.float32))
    y = op.GlobalAveragePool(op.Relu(op.Conv(x, w, pads=[1, 1, 1, 1], kernel_shape=[3, 3])))
    dense = op.initializer("dense", rng.normal(size=(16, 5)).astype(np.float32))
    return op.model(y=op.MatMul(op.Flatten(y), dense))


OUT = 4 * 16 * 16 * 16  # elements that the convolution gives, of a batch of 4
CONV_FLOPS = 2 * OUT * 27


@pytest.mark.parametrize("provider", [CPU, TORCH, REFERENCE])
def test_the_nodes_that_an_engine_ran_have_their_flops(provider: str) -> None:
    profile = profiled(serialized(convnet()), provider, sizes={"batch": 4})
    [conv] = [node for node in profile.nodes if "Conv" in node.operator]
    assert conv.flops in (CONV_FLOPS, CONV_FLOPS + OUT)  # onnxruntime puts the Relu into it
    [dense] = [node for node in profile.nodes if node.operator in ("MatMul", "Gemm")]
    assert dense.flops == 2 * 4 * 16 * 5
    assert all(node.basis == "rule" and node.provider == provider for node in profile.nodes)
    assert sum(profile.analysis.shares.values()) == pytest.approx(1)
    assert profile.latency > 0
    assert profile.verdict.sentence.startswith("Bound by ")


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not here")
def test_openvino_nodes_are_recorded() -> None:
    profile = profiled(serialized(convnet()), OPENVINO, sizes={"batch": 4}, iterations=10)
    operators = [node.operator for node in profile.nodes]
    assert "Convolution" in operators, (operators, profile.notes)
    [conv] = [node for node in profile.nodes if node.operator == "Convolution"]
    assert conv.flops == CONV_FLOPS


@pytest.mark.conformance  # it compiles C++ for many seconds
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_part_is_one_record_with_a_note() -> None:
    if INDUCTOR not in onward.get_available_providers():
        pytest.skip("no C++ compiler is here")
    profile = profiled(convnet(), INDUCTOR, sizes={"batch": 4})
    [part] = profile.nodes
    assert part.operator == PART
    assert part.flops > CONV_FLOPS
    assert part.bytes == 4 * (4 * 3 * 256 + 16 * 27 + 80 + 20)  # feeds, weights, result
    assert any("one record" in note for note in profile.notes)


def test_a_divided_model_shows_the_operators_of_every_part() -> None:
    profile = profiled(sandwich(), CPU, TORCH, sizes={"batch": 2})
    found = {(node.operator, node.provider) for node in profile.nodes}
    assert {("MatMul", CPU), ("Pow", TORCH)} <= found


def test_the_range_chooses_the_iterations() -> None:
    profile = profiled(mlp(), CPU, iterations=6, between=(2, 4))
    assert len(profile.measured.trace.runs) == len(profile.measured.timing.times) == 2
    assert profile.to_json()["iterations"] == {"first": 2, "last": 4}


@pytest.mark.parametrize("change", [{"between": (2, 9)}, {"between": (2, 2)}, {"warm_up": 0}])
def test_a_range_of_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="nothing to analyse\nwarm up once at least"):
        profiled(mlp(), CPU, **change)


def test_missing_feeds_are_random() -> None:
    op = OpBuilder()
    a, b = op.input("a", "float32", ("n",)), op.input("b", "float32", ("n",))
    model = op.model(y=op.Mul(a, b))
    profile = profile_model(
        model, {"a": np.ones(7, np.float32)}, sizes={"n": 7}, iterations=1, warm_up=1
    )
    assert profile.nodes[0].flops == 7
    assert profile.to_json()["feeds"] == {"a": "float32 7", "b": "float32 7"}


def test_the_trace_has_chromes_format(tmp_path: Path) -> None:
    profile = profiled(mlp(), CPU)
    profile.save_trace(tmp_path / "trace.json")
    for write in (profile.save_trace, profile.save_page):
        with pytest.raises(WriteFailed, match="cannot be written: there is no folder"):
            write(tmp_path / "no" / "file")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(profile.measured.trace.records)
    assert {event["args"]["iteration"] for event in events} == {0, 1, 2}
    assert all(event["ph"] == "X" and event["dur"] >= 0 and event["name"] for event in events)


def test_the_figures_are_plain_json() -> None:
    found = json.loads(json.dumps(profiled(mlp(), CPU).to_json(), allow_nan=False))
    assert found["operators"][0]["time"] > 0
    assert set(found["shares"]) == {"compute", "memory", "io", "waiting"}


def test_ctrl_c_keeps_what_was_measured() -> None:
    seen = []

    def progress(doing: str, part: float) -> None:
        seen.append(doing)
        if doing == "profiling" and part > 0.5:
            raise KeyboardInterrupt

    profile = profiled(mlp(), CPU, iterations=4, progress=progress)
    assert profile.last == 3 and profile.measured.interrupted
    assert "ended early" in profile.notes[0]
    assert seen[-1] == "measuring this machine's ceilings"


def test_ctrl_c_while_timing_still_profiles_a_run() -> None:
    def progress(doing: str, part: float) -> None:
        if doing == "timing" and part > 0.5:
            raise KeyboardInterrupt

    profile = profiled(mlp(), CPU, iterations=8, between=(4, 8), progress=progress)
    assert (profile.first, profile.last) == (0, 1)
    assert profile.nodes


def test_nodes_without_names_get_them() -> None:
    model = convnet()
    for node in model.graph:
        node.name = ""
    named = with_names(model, onward.SessionOptions())
    assert isinstance(named, ir.Model)
    assert len({node.name for node in named.graph}) == len(named.graph)
    assert all(not node.name for node in model.graph)
    path = serialized(named)
    assert with_names(path, onward.SessionOptions()) is path


def test_the_session_is_opened_with_the_users_options() -> None:
    options = onward.SessionOptions(graph_optimization_level=0, intra_op_num_threads=1)
    profile = profiled(serialized(convnet()), CPU, sess_options=options)
    assert {"Conv", "Relu"} <= {node.operator for node in profile.nodes}  # nothing was fused
    assert profile.threads == 1 and not options.enable_profiling


def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profiled(sandwich(), CPU, TORCH)
    assert not list(tmp_path.iterdir())


def test_profile_model_is_exported() -> None:
    assert onward.profile_model is profile_model
