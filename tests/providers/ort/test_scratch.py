"""What kernels take beside their outputs, and which write in place: onnxruntime is asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from onward.graph.lifetimes import aligned
from onward.providers.options import SessionOptions
from onward.providers.ort.forecast import forecast
from onward.providers.ort.optimized import Optimized

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def model(op_type: str, feeds: dict[str, Any], domain: str = "", **attributes: Any) -> Any:
    """Fresh values through one operator, and on: nothing that it reads or writes is a feed."""
    nodes = [helper.make_node("Concat", [n], [f"{n}_"], name=f"{n}_", axis=0) for n in feeds]
    inputs = [f"{name}_" for name in feeds]
    nodes.append(helper.make_node(op_type, inputs, ["z"], "THE", domain=domain, **attributes))
    nodes.append(helper.make_node("Concat", ["z"], ["y"], name="after", axis=0))
    types = {np.dtype("float32"): 1, np.dtype("bool"): 9}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, types[f.dtype], f.shape) for n, f in feeds.items()],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def asked(
    proto: onnx.ModelProto, feeds: dict[str, Any], folder: Path
) -> dict[str, tuple[int, int]]:
    """node: (bytes of outputs, bytes of scratch), from onnxruntime's own record of a run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    record = folder / "record.csv"
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(record))
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    session.run(None, feeds)
    del session
    rows = [line.rsplit(",", 4) for line in record.read_text().splitlines()[1:]]
    return {name.rsplit("_", 1)[0]: (int(made), int(took)) for name, _, _, made, took in rows}


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Relu", {"x": floats(4, 100)}, {}),
    ("Tanh", {"x": floats(4, 100)}, {}),
    ("Clip", {"x": floats(4, 100)}, {}),
    ("Neg", {"x": floats(4, 100)}, {}),
    ("Add", {"a": floats(4, 100), "b": floats(4, 100)}, {}),
    ("Identity", {"x": floats(4, 100)}, {}),
    ("Softmax", {"x": floats(4, 100)}, {"axis": 1}),
    ("Softmax", {"x": floats(4, 100, 3)}, {"axis": 1}),
    ("Where", {"c": np.ones((4, 100), bool), "a": floats(4, 100), "b": floats(4, 100)}, {}),
    ("Sum", {"a": floats(4, 100), "b": floats(4, 100), "c": floats(4, 100)}, {}),
    ("Sum", {"a": floats(4, 100), "b": floats(4, 100)}, {}),
    ("Conv", {"x": floats(1, 16, 32, 32), "w": floats(16, 16, 3, 3)}, {"pads": [1] * 4}),
    ("Conv", {"x": floats(1, 16, 32, 32), "w": floats(16, 16, 1, 1)}, {}),
    ("Conv", {"x": floats(1, 16, 32, 32), "w": floats(16, 16, 1, 1)}, {"strides": [2, 2]}),
    ("Conv", {"x": floats(1, 16, 4, 4), "w": floats(64, 16, 3, 3)}, {"pads": [1] * 4}),
    ("Conv", {"x": floats(1, 16, 9, 9), "w": floats(16, 1, 5, 5)}, {"group": 16}),
    ("Conv", {"x": floats(2, 8, 64), "w": floats(8, 8, 5)}, {}),
    ("ConvTranspose", {"x": floats(1, 8, 16, 16), "w": floats(8, 4, 2, 2)}, {"strides": [2, 2]}),
    ("LSTM", {"x": floats(10, 8, 16), "w": floats(1, 128, 16), "r": floats(1, 128, 32)},
     {"hidden_size": 32}),
    ("LSTM", {"x": floats(10, 8, 16), "w": floats(2, 128, 16), "r": floats(2, 128, 32),
              "b": floats(2, 256)}, {"hidden_size": 32, "direction": "bidirectional"}),
    ("GRU", {"x": floats(10, 8, 16), "w": floats(1, 96, 16), "r": floats(1, 96, 32),
             "b": floats(1, 192)}, {"hidden_size": 32}),
    ("GRU", {"x": floats(10, 8, 16), "w": floats(1, 96, 16), "r": floats(1, 96, 32)},
     {"hidden_size": 32}),
    ("RNN", {"x": floats(10, 8, 16), "w": floats(1, 32, 16), "r": floats(1, 32, 32)},
     {"hidden_size": 32}),
    ("LRN", {"x": floats(2, 5, 6, 6)}, {"size": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "feeds", "attributes"), CASES, ids=lambda c: str(c)[:20])
def test_onnxruntime_takes_what_the_table_says(
    op_type: str, feeds: dict[str, Any], attributes: dict[str, Any], tmp_path: Path
) -> None:
    proto = model(op_type, feeds, **attributes)
    real = asked(proto, feeds, tmp_path)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    shapes = {name: feed.shape for name, feed in feeds.items()}
    options = SessionOptions()
    found = forecast(Optimized(path, options), shapes, options, threads=1)
    assert not found.unknown
    for step, took in zip(found.lives.steps, found.scratch, strict=True):
        made = sum(aligned(found.lives.buffers[number].nbytes, 256) for number in step.births)
        assert (made, took) == real[step.name], step.name
