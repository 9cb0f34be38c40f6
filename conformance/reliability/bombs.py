"""R3: compute bombs. Each ends at its deadline, and holds its memory cap.

    python -m conformance.reliability.bombs [--bomb NAME ...] [--in-process] [--provider NAME]

Small models that would compute for years or fill terabytes. Each runs in a separate process:
isolated (every bomb: hard limits), and in the caller's process (where the engine can be stopped).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper

import onward
from onward.errors import OnwardError

DEADLINE = 1.0  # seconds that a run may take
OPENING = 20.0  # seconds that opening may take
LATE = 0.5  # seconds after the deadline that still count as on time
CAP = 512 << 20  # bytes
SLACK = 64 << 20  # bytes that pages, stacks and the protocol may add
LOST = 60.0  # seconds after which a bomb counts as lost


@dataclass(frozen=True)
class Bomb:
    """A model and its feeds; `stoppable`: by every engine, between two of its kernels."""

    takes: str
    gives: str
    body: str
    feeds: dict[str, Any]
    stoppable: bool = False
    opset: int = 21

    def model(self) -> onnx.ModelProto:
        return onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : {self.opset}, "local" : 1]>\n'
            f"bomb ({self.takes}) => ({self.gives}) {self.body}"
        )


def _sizes(*sizes: int) -> np.ndarray[Any, Any]:
    return np.array(sizes, np.int64)


_X = np.ones(2, np.float32)
_TERABYTES = _sizes(1 << 20, 1 << 20)
_FOREVER = np.array(1 << 62, np.int64)
_TRUE = np.array(True)
_LOOP = "int64 n, bool c, "
_STARTED = {"n": _FOREVER, "c": _TRUE}


def _loop(state: str, step: str) -> str:
    """A loop over one state `s`, whose body gives `t`."""
    return (
        f"{{ y = Loop(n, c, x) <body = b (int64 i, bool ci, {state} s) => "
        f"(bool co, {state} t) {{ co = Identity(ci) {step} }}> }}"
    )


_INNER = (
    "t = Loop(n, ci, s) <body = d (int64 j, bool di, float[2] u) => "
    "(bool do, float[2] v) { do = Identity(di) v = Sin(u) }>"
)

BOMBS: dict[str, Bomb] = {
    "loop": Bomb(_LOOP + "float[2] x", "float[2] y", _loop("float[2]", "t = Sin(s)"),
                 {**_STARTED, "x": _X}, stoppable=True),
    "empty loop": Bomb(_LOOP + "float[2] x", "float[2] y",
                       _loop("float[2]", "t = Identity(s)"), {**_STARTED, "x": _X}, stoppable=True),
    "endless loop": Bomb(
        "bool c, float[2] x", "float[2] y",
        '{ y = Loop("", c, x) <body = b (int64 i, bool ci, float[2] s) => '
        "(bool co, float[2] t) { co = Identity(ci) t = Sin(s) }> }",
        {"c": _TRUE, "x": _X}, stoppable=True),
    "nested loops": Bomb(_LOOP + "float[2] x", "float[2] y", _loop("float[2]", _INNER),
                         {**_STARTED, "x": _X}, stoppable=True),
    "loop that collects": Bomb(
        _LOOP + "float[2] x", "float[2] y, float[m, 2] rows",
        "{ y, rows = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] s) => "
        "(bool co, float[2] t, float[2] r) { co = Identity(ci) t = Sin(s) r = Cos(s) }> }",
        {**_STARTED, "x": _X}, stoppable=True),
    "doubling tensors": Bomb(_LOOP + "float[k] x", "float[m] y",
                             _loop("float[l]", "t = Concat<axis = 0>(s, s)"),
                             {**_STARTED, "x": _X}),
    "doubling text": Bomb(_LOOP + "string[1] x", "string[1] y",
                          _loop("string[1]", "t = StringConcat(s, s)"),
                          {**_STARTED, "x": np.array(["onward"], object)}),
    "growing sequence": Bomb(
        _LOOP + "float[k] x", "int64 y",
        "{ e = SequenceConstruct(x) z = Loop(n, c, e) <body = b (int64 i, bool ci, seq(float[k]) s)"
        " => (bool co, seq(float[k]) t) { co = Identity(ci) t = SequenceInsert(s, x) }> "
        "y = SequenceLength(z) }", {**_STARTED, "x": np.ones(1 << 16, np.float32)}),
    "scan": Bomb(
        "int64[1] k, float[2] s", "float[2] y",
        "{ a = ConstantOfShape(k) y = Scan(s, a) <num_scan_inputs = 1, body = b (float[2] p, "
        "float v) => (float[2] q) { a1 = Sin(p) a2 = Add(a1, v) q = Cos(a2) }> }",
        {"k": _sizes(1 << 25), "s": _X}, stoppable=True),
    "matmul chain": Bomb(
        "int64[2] k", "float s",
        "{ a0 = ConstantOfShape(k) "
        + " ".join(f"a{i + 1} = MatMul(a{i}, a0)" for i in range(400))
        + " s = ReduceSum<keepdims = 0>(a400) }", {"k": _sizes(1000, 1000)}, stoppable=True),
    "one matmul": Bomb("int64[2] k", "float s",
                       "{ a = ConstantOfShape(k) b = MatMul(a, a) s = ReduceSum<keepdims = 0>(b) }",
                       {"k": _sizes(6000, 6000)}),
    "one convolution": Bomb(
        "int64[4] k, int64[4] l", "float s",
        "{ x = ConstantOfShape(k) w = ConstantOfShape(l) y = Conv<group = 1>(x, w) "
        "s = ReduceSum<keepdims = 0>(y) }",
        {"k": _sizes(1, 32, 512, 512), "l": _sizes(512, 32, 9, 9)}),
    "sorting": Bomb("int64 k", "float s",
                    "{ zero = Constant<value_int = 0>() one = Constant<value_int = 1>() "
                    "r = Range(zero, k, one) a = Cast<to = 1>(r) b = Sin(a) u = Unique(b) "
                    "s = ReduceSum<keepdims = 0>(u) }", {"k": np.array(1 << 23, np.int64)}),
    "expand": Bomb("float[1] x, int64[2] k", "float[a, b] y", "{ y = Expand(x, k) }",
                   {"x": np.ones(1, np.float32), "k": _TERABYTES}),
    "tile": Bomb("float[1, 1] x, int64[2] k", "float[a, b] y", "{ y = Tile(x, k) }",
                 {"x": np.ones((1, 1), np.float32), "k": _TERABYTES}),
    "range": Bomb("int64 a, int64 b, int64 c", "int64[m] y", "{ y = Range(a, b, c) }",
                  {"a": _FOREVER * 0, "b": _FOREVER, "c": _FOREVER * 0 + 1}),
    "constant of shape": Bomb("int64[2] k", "float[a, b] y", "{ y = ConstantOfShape(k) }",
                              {"k": _TERABYTES}),
    "folded constant": Bomb(
        "float[1] x", "float[a, b] y",
        "{ k = Constant<value_ints = [1048576, 1048576]>() f = ConstantOfShape(k) "
        "g = Sin(f) y = Add(g, x) }", {"x": np.ones(1, np.float32)}),
    "folded chain": Bomb(
        "float[1] x", "float[a, b] y",
        "{ k = Constant<value_ints = [4000, 4000]>() a0 = ConstantOfShape(k) "
        + " ".join(f"a{i + 1} = MatMul(a{i}, a0)" for i in range(200))
        + " y = Add(a200, x) }", {"x": np.ones(1, np.float32)}),
    "pad": Bomb("float[2] x, int64[2] p", "float[m] y", "{ y = Pad(x, p) }",
                {"x": _X, "p": _sizes(1 << 40, 1 << 40)}),
    "one hot": Bomb("int64[2] x, int64 d, float[2] v", "float[2, m] y", "{ y = OneHot(x, d, v) }",
                    {"x": _sizes(0, 1), "d": np.array(1 << 40, np.int64), "v": _X}),
    "resize": Bomb("float[1, 1, 2, 2] x, float[4] k", "float[a, b, c, d] y",
                   '{ y = Resize<mode = "nearest">(x, "", k) }',
                   {"x": np.ones((1, 1, 2, 2), np.float32),
                    "k": np.array([1, 1, 1e6, 1e6], np.float32)}),
    "outer product": Bomb("int64[2] k", "float s",
                          "{ a = ConstantOfShape(k) b = Transpose(a) c = Mul(a, b) "
                          "s = ReduceSum<keepdims = 0>(c) }", {"k": _sizes(1, 1 << 20)}),
    "long recurrence": Bomb(
        "int64[3] k, int64[3] l, int64[3] m", "float[a, b, c] h",
        "{ x = ConstantOfShape(k) w = ConstantOfShape(l) r = ConstantOfShape(m) "
        'y, h = GRU<hidden_size = 64>(x, w, r) }',
        {"k": _sizes(1 << 19, 1, 4), "l": _sizes(1, 192, 4), "m": _sizes(1, 192, 64)}),
}  # fmt: skip


def recursive() -> onnx.ModelProto:
    """A function that calls itself."""
    return _functions({"f0": ["f0"]})


def exponential() -> onnx.ModelProto:
    """Forty functions, each calling the next one twice: a tera of nodes once inlined."""
    calls = {f"f{n}": [f"f{n + 1}", f"f{n + 1}"] for n in range(40)}
    return _functions({**calls, "f40": []})


def _functions(calls: dict[str, list[str]]) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    functions = []
    for name, called in calls.items():
        names = [f"v{n}" for n in range(len(called) + 1)]
        body = [
            helper.make_node(inner, [a], [b], domain="local")
            for inner, a, b in zip(called, names, names[1:])
        ]
        body.append(helper.make_node("Sin", [names[-1]], ["w"]))
        functions.append(helper.make_function("local", name, ["v0"], ["w"], body, imports))
    x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="local")], "g", [x], [y])
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


OPENED = {"recursive function": recursive, "exponential functions": exponential}
NAMES = [*BOMBS, *OPENED]


def set_off(name: str, isolated: bool, provider: str | None) -> dict[str, Any]:
    """Open and run one bomb in this process; returns what ended it, and when."""
    options = onward.SessionOptions(
        isolated=isolated,
        run_timeout=DEADLINE,
        open_timeout=OPENING,
        log_severity_level=4,
        memory_limit=CAP if isolated else None,
        disable_fallback=provider is not None,
    )
    bomb = BOMBS.get(name)
    model = bomb.model() if bomb else OPENED[name]()
    feeds = bomb.feeds if bomb else {"x": _X}
    by, opened, started = "nothing", 0.0, time.monotonic()
    try:
        session = onward.InferenceSession(
            model.SerializeToString(), options, [provider] if provider else None
        )
        opened, started = time.monotonic() - started, time.monotonic()
        session.run(None, feeds)
        by = "itself"
    except OnwardError as error:
        by = type(error).__name__
    took = time.monotonic() - started
    late = max(0.0, took - DEADLINE) if opened else max(0.0, took - OPENING)
    return {"bomb": name, "ended_by": by, "late": late, "opened": opened, "took": took}


def peak_of_children() -> int:
    """The largest memory that any child of this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def baseline(provider: str | None) -> int:
    """The memory of an isolated process with a trivial model on this provider."""
    options = onward.SessionOptions(isolated=True, log_severity_level=4)
    quiet = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[1] y) { y = Abs(x) }'
    )
    providers = ["TorchExecutionProvider"] if provider is None else [provider]
    session = onward.InferenceSession(quiet.SerializeToString(), options, providers)
    session.run(None, {"x": np.ones(1, np.float32)})
    del session
    return peak_of_children()


def go_off(names: Sequence[str], isolated: bool, provider: str | None) -> list[dict[str, Any]]:
    """Run each bomb in a separate process; one that outlives every limit is `lost`."""
    rows = []
    for name in names:
        command = [sys.executable, "-m", "conformance.reliability.bombs", "--one", name]
        command += [] if isolated else ["--in-process"]
        command += ["--provider", provider] if provider else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LOST)
            row = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            row = {"bomb": name, "ended_by": "nobody", "late": LOST, "opened": 0.0, "took": LOST}
        rows.append({**row, "isolated": isolated, "provider": provider or "default"})
    return rows


def verdict(rows: Sequence[dict[str, Any]], base: int | None) -> str:
    """The figure of this row."""
    good = [row for row in rows if row["ended_by"] != "nobody" and row["late"] <= LATE]
    latest = max(row["late"] for row in rows)
    text = f"{len(good)}/{len(rows)} ended at the deadline, latest +{latest:.2f} s"
    if base is None:
        return text
    held = [row for row in rows if row.get("peak", CAP * 100) <= base + CAP + SLACK]
    return f"{text}, memory cap held {len(held)}/{len(rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(description="compute bombs")
    parser.add_argument("--bomb", action="append", choices=NAMES)
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--provider")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    isolated = not given.in_process
    if given.one:
        row = set_off(given.one, isolated, given.provider)
        row["peak"] = peak_of_children() if isolated else 0
        print(json.dumps(row))
        return 0
    every = NAMES if isolated else [name for name, bomb in BOMBS.items() if bomb.stoppable]
    rows = go_off(given.bomb or every, isolated, given.provider)
    for row in rows:
        print(f"  {row['bomb']:24} {row['ended_by']:22} +{row['late']:.2f} s "
              f"{row.get('peak', 0) >> 20:6} MB")  # fmt: skip
    base = baseline(given.provider) if isolated else None
    text = verdict(rows, base)
    print(text)
    return 0 if text.startswith(f"{len(rows)}/{len(rows)} ended") else 1


if __name__ == "__main__":
    sys.exit(main())
