"""Loaders are code that a compiler takes, whatever the names of the model's inputs are."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onward.compress.edge.loaders import Port, write_loader
from onward.compress.edge.targets import TARGETS
from onward.errors import UnsupportedModel

STUBS = Path(__file__).parent / "stubs"
NAMES = (
    *("image:0", "größe", "1st", "in", "class", "default", "$x", 'a"b', "a\\b"),  # not variables
    *("x", "x_shape", "xShape", "x.shape", "xValue"),  # clash with variables of each other
    *("inputs", "outputs", "memory", "session", "ort", "feeds", "run", "url", "path", "results"),
)
TYPES = ("float32", "int64", "int32", "int8", "uint8")  # that each target has
INPUTS = [
    Port(name=name, type=TYPES[place % len(TYPES)], shape=("batch", 2)[: place % 3])
    for place, name in enumerate(NAMES)
]
OUTPUTS = [Port(name=name, type="float32", shape=("batch", "a\nb")) for name in ("y:0", "session")]


def need(program: str) -> str:
    """A compiler's path; without it, the test is skipped."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def write(target: str, folder: Path, inputs: list[Port] = INPUTS) -> Path:
    name, text = write_loader(target, "model.onnx", inputs, OUTPUTS)
    (folder / name).write_text(text, "utf-8")
    return folder / name


def check(*command: Any, **options: Any) -> str:
    """Run a compiler or a program; what it prints if it fails is the test's message."""
    given = list(map(str, command))
    done = subprocess.run(given, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compile_cpp(source: Path) -> None:
    """Check the types of a C++ file: with onnxruntime's own header if it is installed."""
    flags = ("-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror")
    check(need("g++"), *flags, "-idirafter", STUBS, source)


def test_cpp_loader_compiles(tmp_path: Path) -> None:
    more = ("float64", "uint64", "uint32", "int16", "uint16", "bool")
    inputs = [*INPUTS, *(Port(name=f"more_{each}", type=each, shape=(2, 3)) for each in more)]
    compile_cpp(write("minimal", tmp_path, inputs))


def test_compiler_is_asked_for_types_too(tmp_path: Path) -> None:
    """The check above can fail: a tensor of another type than its data is an error."""
    source = write("minimal", tmp_path)
    source.write_text(
        source.read_text("utf-8").replace("CreateTensor<float>", "CreateTensor<int>"), "utf-8"
    )
    with pytest.raises(AssertionError, match="CreateTensor"):
        compile_cpp(source)


_STUB = """
export class Tensor {
  constructor(type, data, dims) {
    const size = dims.reduce((a, b) => a * b, 1);
    if (data.length !== size) throw new Error(`${data.length} elements for ${dims}`);
    Object.assign(this, { type, kind: data.constructor.name, dims });
  }
}
export class InferenceSession {
  static async create(path) {
    return Object.assign(new InferenceSession(), { path });
  }
  async run(feeds) {
    return { 'y:0': feeds, session: this.path };
  }
}
"""
_MAIN = """
import { run } from './loader.mjs';
const first = await run();
const second = await run({ image_0: { data: new Float32Array(6), dims: [2, 3] } });
console.log(JSON.stringify([first['y:0'], second['y:0']['image:0'].dims, first.session]));
"""


@pytest.mark.parametrize(
    ("target", "package"), [("web", "onnxruntime-web"), ("node", "onnxruntime-node")]
)
def test_javascript_loader_runs(target: str, package: str, tmp_path: Path) -> None:
    node, folder = need("node"), tmp_path / "node_modules" / package
    folder.mkdir(parents=True)
    (folder / "stub.mjs").write_text(_STUB)
    entries = {".": "./stub.mjs", "./wasm": "./stub.mjs"}
    (folder / "package.json").write_text(json.dumps({"name": package, "exports": entries}))
    (tmp_path / "main.mjs").write_text(_MAIN)
    write(target, tmp_path)
    feeds, dims, path = json.loads(check(node, "main.mjs", cwd=tmp_path))
    assert dims == [2, 3] and path.endswith("/model.onnx")
    assert list(feeds) == list(NAMES)
    kinds = {"float32": "Float32Array", "int64": "BigInt64Array", "int32": "Int32Array"}
    kinds |= {"int8": "Int8Array", "uint8": "Uint8Array"}
    for port in INPUTS:
        expected = {"type": port.type, "kind": kinds[port.type], "dims": list(port.sizes)}
        assert feeds[port.name] == expected


def test_kotlin_loader_compiles(tmp_path: Path) -> None:
    kotlin, java = need("kotlinc"), need("javac")
    check(java, "-d", tmp_path / "stubs", *STUBS.rglob("*.java"))
    source = write("android", tmp_path)
    check(kotlin, source, "-cp", tmp_path / "stubs", "-d", tmp_path / "out", "-nowarn")


def test_swift_loader_is_swift(tmp_path: Path) -> None:
    check(need("swiftc"), "-frontend", "-parse", write("ios", tmp_path))


@pytest.mark.parametrize("target", TARGETS)
def test_line_breaks_in_names_are_no_code(target: str) -> None:
    _, text = write_loader(target, "model.onnx", INPUTS, OUTPUTS)
    assert "a\nb" not in text and '"a\\nb"' in text  # a size, in a comment
    bad = [Port(name="x\nimport evil", type="float32", shape=(1,))]
    with pytest.raises(UnsupportedModel, match=r"the name 'x\\nimport evil' has characters"):
        write_loader(target, "model.onnx", bad, OUTPUTS)
