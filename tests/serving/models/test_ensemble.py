"""Ensembles: a graph of models is checked when it is loaded, and served like a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import ModelUnavailable, OptionError, RequestInvalid, ServerOverloaded
from onward.serving.models.config_pbtxt import parse_text
from onward.serving.models.ensemble import Ensemble
from onward.serving.models.ensemble_graph import check_parts, loading_order, read_ensemble
from onward.serving.models.model_config import normalize
from onward.serving.models.repository import Repository
from onward.serving.requests import Done, InferRequest, InferResponse, RequestedOutput, TensorSpec
from onward.serving.settings import ServingSettings
from tests.serving.fake_served import FakeServed
from tests.serving.small_models import scale_model, write_model

#   x -> a -> t -> b -> y          c adds t and y
GRAPH = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output [ { name: "y" data_type: TYPE_FP32 dims: [4] }, { name: "z" data_type: TYPE_FP32 dims: 4 } ]
ensemble_scheduling { step [
  { model_name: "c" model_version: -1 input_map { key: "p" value: "t" }
    input_map { key: "q" value: "y" } output_map { key: "sum" value: "z" } },
  { model_name: "b" input_map { key: "x" value: "t" } output_map { key: "y" value: "y" } },
  { model_name: "a" model_version: 3 input_map { key: "x" value: "x" }
    output_map { key: "y" value: "t" } }
] }
"""
ROW = TensorSpec("x", "FP32", (-1, 4))
PARTS = {
    "a": ([ROW], [TensorSpec("y", "FP32", (-1, 4)), TensorSpec("unused", "FP32", (-1,))]),
    "b": ([ROW], [TensorSpec("y", "FP32", (-1, -1))]),
    "c": (
        [TensorSpec("p", "FP32", (-1, 4)), TensorSpec("q", "FP32", (-1, 4))],
        [TensorSpec("sum", "FP32", (-1, 4))],
    ),
}
X = np.arange(4, dtype=np.float32).reshape(1, 4)


def config_of(text: str) -> dict[str, Any]:
    return normalize(parse_text(text))


def signature(name: str, version: str) -> Any:
    if name not in PARTS:
        raise ModelUnavailable(f"no {name}")
    return PARTS[name]


def test_steps_are_sorted() -> None:
    graph = read_ensemble("e", config_of(GRAPH))
    assert graph.models == ["a", "b", "c"]
    assert graph.steps[0].version == "3" and graph.steps[1].version == ""
    assert graph.inputs == (ROW,)
    check_parts(graph, signature)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('value: "x"', 'value: "y"', "ensemble 'e' has a cycle: "),
        ('value: "x"', 'value: "w"', "nothing makes tensor 'w'"),
        ('key: "y" value: "y"', 'key: "y" value: "t"', "tensor 't' is made twice"),
        ('value: "z"', 'value: "zz"', "no step makes its output 'z'"),
        ('model_name: "b"', 'model_name: "e"', "'e' has itself as a step"),
        ('dims: 4 }', "}", "'z' has no data_type or no dims"),
        ("step [", "other [", "ensemble 'e' has no steps"),
        ('model_name: "b"', 'model_name: "d"', "needs model 'd', which is not ready: no d"),
        ('input_map { key: "q" value: "y" }', "", "maps nothing to input 'q' of 'c'"),
        ('key: "q"', 'key: "qq"', "model 'c' has no input 'qq': did you mean 'q'"),
        ('key: "sum"', 'key: "total"', "model 'c' has no output 'total'"),
        ("TYPE_FP32 dims: [4] }\noutput", "TYPE_INT64 dims: [4] }\noutput",
         r"'x' of a is FP32 \[-1, 4\], but 'x' is INT64 \[-1, 4\]"),
        ('"x" data_type: TYPE_FP32', '"x" optional: true data_type: TYPE_FP32',
         "input 'x' is declared as optional, but 'a' cannot run without its 'x'"),
        ("dims: 4 }", "dims: 5 }", r"'sum' of its output is FP32 \[-1, 4\], but 'z' is FP32"),
    ],
)  # fmt: skip
def test_a_wrong_graph_is_refused_in_one_line(old: str, new: str, error: str) -> None:
    assert old in GRAPH
    with pytest.raises(OptionError, match=error) as raised:
        check_parts(read_ensemble("e", config_of(GRAPH.replace(old, new))), signature)
    assert "\n" not in str(raised.value)


def test_ensembles_are_loaded_after_their_parts() -> None:
    outer = config_of(GRAPH.replace('model_name: "b"', 'model_name: "inner"'))
    assert loading_order({"outer": outer, "inner": config_of(GRAPH)}) == ["inner", "outer"]
    assert sorted(loading_order({"inner": outer, "x": {}})) == ["inner", "x"]


class Parts:
    """Models that are answered by the test."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[InferRequest, Done]] = {}
        self.cancelled: list[str] = []

    def submit(self, request: InferRequest, done: Done) -> Any:
        self.waiting[request.model] = (request, done)
        return partial(self.cancelled.append, request.model)

    def answer(self, model: str, outputs: Mapping[str, Any] | Exception) -> None:
        request, done = self.waiting.pop(model)
        if isinstance(outputs, Exception):
            done(outputs)
        else:
            done(InferResponse(model, "1", dict(outputs), request.id))


def make(loop: Any = None, clock: Any = lambda: 0.0) -> tuple[Ensemble, Parts]:
    parts = Parts()
    graph = read_ensemble("e", config_of(GRAPH))
    return Ensemble(graph, "1", parts.submit, signature, loop=loop, clock=clock), parts


def _is_read_only_view(found: Any, array: Any) -> bool:
    """Other steps and the answer need it unchanged: a function may compute in place."""
    return np.shares_memory(found, array) and not found.flags.writeable and array.flags.writeable


def test_tensors_are_passed_on_without_copies() -> None:
    times = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    ensemble, parts = make(clock=lambda: next(times))
    found: list[Any] = []
    asked = (RequestedOutput("z"),)
    ensemble.submit(InferRequest("e", {"x": X}, id="7", outputs=asked, timeout=10.0), found.append)
    assert list(parts.waiting) == ["a"]
    request = parts.waiting["a"][0]
    assert (
        request.version == "3"
        and _is_read_only_view(request.inputs["x"], X)
        and request.timeout == 9.0
    )
    assert [each.name for each in request.outputs] == ["y"]
    parts.answer("a", {"y": (t := 2 * X)})
    request = parts.waiting["b"][0]
    assert _is_read_only_view(request.inputs["x"], t) and request.timeout == 8.0
    parts.answer("b", {"y": (y := 3 * X)})
    given = parts.waiting["c"][0].inputs
    assert list(given) == ["p", "q"]
    assert _is_read_only_view(given["p"], t) and _is_read_only_view(given["q"], y)
    parts.answer("c", {"sum": (z := 5 * X)})
    [response] = found
    assert list(response.outputs) == ["z"] and response.outputs["z"] is z
    assert (response.model, response.version, response.id) == ("e", "1", "7")
    assert ensemble.statistics()["inference_stats"]["success"]["count"] == 1


def test_ensembles_that_need_each_other_are_refused(tmp_path: Path) -> None:
    for name, other in (("p", "q"), ("q", "p")):
        (tmp_path / name).mkdir()
        text = CHAIN.replace('"a"', f'"{other}"').replace('"b"', f'"{other}"')
        (tmp_path / name / "config.pbtxt").write_text(text)
    write_model(tmp_path / "a/1/model.onnx")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = Repository(ServingSettings(), loop=loop, clock=lambda: 0.0, factory=FakeServed)
        await found.open(tmp_path)
        with pytest.raises(RequestInvalid, match="'p' needs model 'q', which is not ready"):
            await asyncio.wait_for(found.load("p", {}), 60)
        await found.close()

    asyncio.run(main())


def test_texts_become_bytes_between_models() -> None:
    ensemble, parts = make()
    ensemble.submit(InferRequest("e", {"x": X}), lambda _: None)
    parts.answer("a", {"y": np.array(["é", b"b"], object)})
    assert parts.waiting["b"][0].inputs["x"].tolist() == ["é".encode(), b"b"]


def test_an_error_of_a_part_ends_the_request_once() -> None:
    ensemble, parts = make()
    found: list[Any] = []
    ensemble.submit(InferRequest("e", {"x": X}), found.append)
    parts.answer("a", ServerOverloaded("too many", retry_after=2.0))
    [error] = found
    assert isinstance(error, ServerOverloaded) and error.retry_after == 2.0
    assert str(error) == "in ensemble 'e', too many"
    assert ensemble.statistics()["inference_stats"]["fail"]["count"] == 1


def test_a_cancelled_request_is_never_done() -> None:
    ensemble, parts = make()
    found: list[Any] = []
    cancel = ensemble.submit(InferRequest("e", {"x": X}), found.append)
    cancel()
    assert parts.cancelled == ["a"]
    parts.answer("a", {"y": X})
    assert found == [] and parts.waiting == {}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (InferRequest("e", {}), "expected 1 inputs but got 0 inputs for model 'e'"),
        (InferRequest("e", {"x": X, "w": X}), "unexpected inference input 'w'"),
        (InferRequest("e", {"x": X}, outputs=(RequestedOutput("t"),)), "inference output 't'"),
        (InferRequest("e", {"x": X.astype(np.int32)}), "'x' data-type is 'INT32', but model 'e'"),
        (InferRequest("e", {"x": X[:, :3]}), "'x' for model 'e'. Expected [-1,4], got [1,3]"),
        (InferRequest("e", {"x": X[0]}), "'x' for model 'e'. Expected [-1,4], got [4]"),
        (InferRequest("e", {"x": np.repeat(X, 9, 0)}), "batch-size must be <= 8 for 'e'"),
    ],
)
def test_wrong_requests_are_refused(request_: InferRequest, error: str) -> None:
    found: list[Any] = []
    make()[0].submit(request_, found.append)
    assert isinstance(found[0], RequestInvalid) and error in str(found[0])


def test_draining_waits_for_what_runs() -> None:
    async def main() -> None:
        ensemble, parts = make(asyncio.get_running_loop())
        found: list[Any] = []
        ensemble.submit(InferRequest("e", {"x": X}), found.append)
        drain = asyncio.create_task(ensemble.drain(60))
        await asyncio.sleep(0)
        ensemble.submit(InferRequest("e", {"x": X}), found.append)
        assert isinstance(found.pop(), ModelUnavailable) and not drain.done()
        for model, outputs in (("a", {"y": X}), ("b", {"y": X}), ("c", {"sum": X})):
            parts.answer(model, outputs)
        await drain
        assert isinstance(found[0], InferResponse)
        await ensemble.close()

    asyncio.run(main())


CHAIN = """
input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }
output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }
ensemble_scheduling { step [
  { model_name: "a" input_map { key: "x" value: "x" } output_map { key: "y" value: "t" } },
  { model_name: "b" input_map { key: "x" value: "t" } output_map { key: "y" value: "y" } } ] }
"""


@pytest.mark.integration
def test_an_ensemble_follows_its_parts(tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx", scale_model(2))
    write_model(tmp_path / "b/1/model.onnx", scale_model(3))
    (tmp_path / "both/1").mkdir(parents=True)
    labelled = CHAIN.replace("dims: [-1, 4] }\nens", 'dims: [-1, 4] label_filename: "l.txt" }\nens')
    (tmp_path / "both/config.pbtxt").write_text('platform: "ensemble"' + labelled)
    (tmp_path / "both/l.txt").write_text("cat\ndog\n")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = Repository(ServingSettings(), loop=loop, clock=lambda: 0.0, factory=FakeServed)

        async def infer() -> Any:
            future = loop.create_future()
            found.submit(InferRequest("both", {"x": X}), future.set_result)
            return await asyncio.wait_for(future, 60)

        def state() -> tuple[str, str]:
            row = next(row for row in found.table.index() if row["name"] == "both")
            return row["state"], row.get("reason", "")

        await found.open(tmp_path)
        np.testing.assert_array_equal((await infer()).outputs["y"], 6 * X)
        opened = found.table.version("both", "1").opened
        assert opened is not None and opened.labels == {"y": ["cat", "dog"]}
        write_model(tmp_path / "b/1/model.onnx", scale_model(5))
        await found.reload("b")
        np.testing.assert_array_equal((await infer()).outputs["y"], 10 * X)
        await found.unload("b")
        assert state()[0] == "UNAVAILABLE" and "needs model 'b', which is not ready" in state()[1]
        assert "has no available versions" in str(await infer())
        await found.load("both", {})  # loads the parts that are missing
        assert state() == ("READY", "")
        await found.unload("both", with_dependents=True)
        assert not found.table.index(only_ready=True)
        await found.load("both", {})
        assert len(found.table.index(only_ready=True)) == 3
        await found.unload("a", with_dependents=True)
        assert [row["name"] for row in found.table.index(only_ready=True)] == ["b"]
        await found.drain(1.0)
        await found.close()

    asyncio.run(main())
