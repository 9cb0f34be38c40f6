"""Loaders to paste: code that opens this model on a target and feeds its real inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onward.compress.edge.loader_variables import make_variables
from onward.errors import UnsupportedModel


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or an output: its name, the type of its elements and its sizes."""

    name: str
    type: str  # "float32", "int64", ...
    shape: tuple[int | str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of an example: dynamic dimensions are 1."""
        return tuple(size if isinstance(size, int) else 1 for size in self.shape)

    @property
    def count(self) -> int:
        """The elements of an example."""
        total = 1
        for size in self.sizes:
            total *= size
        return total


_JAVASCRIPT = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "int64": "BigInt64Array",
    "uint64": "BigUint64Array",
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "int16": "Int16Array",
    "uint16": "Uint16Array",
    "int8": "Int8Array",
    "uint8": "Uint8Array",
    "bool": "Uint8Array",
    "string": "Array",
    "float16": "Uint16Array",
}
_KOTLIN = {
    "float32": ("FloatBuffer", "FloatArray"),
    "float64": ("DoubleBuffer", "DoubleArray"),
    "int64": ("LongBuffer", "LongArray"),
    "int32": ("IntBuffer", "IntArray"),
    "int16": ("ShortBuffer", "ShortArray"),
    "int8": ("ByteBuffer", "ByteArray"),
    "uint8": ("ByteBuffer", "ByteArray"),
}
_SWIFT = {
    "float32": ("float", "Float"),
    "int64": ("int64", "Int64"),
    "int32": ("int32", "Int32"),
    "uint32": ("uInt32", "UInt32"),
    "uint64": ("uInt64", "UInt64"),
    "int8": ("int8", "Int8"),
    "uint8": ("uInt8", "UInt8"),
}
_CPP = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "bool",
}


def write_loader(
    target: str, file: str, inputs: Sequence[Port], outputs: Sequence[Port]
) -> tuple[str, str]:
    """The name and the text of the loader of a target."""
    name, make = _LOADERS[target]
    return name, make(file, inputs, outputs)


def _typed(port: Port, table: dict[str, Any], target: str) -> Any:
    if port.type not in table:
        raise UnsupportedModel(
            f"{target}: the loader has no type for {port.name!r} of {port.type}\n"
            f"it has {', '.join(table)}"
        )
    return table[port.type]


def _shown(port: Port) -> str:
    return f"{port.type}[{', '.join(_in_comment(str(size)) for size in port.shape)}]"


def _describe(ports: Sequence[Port], mark: str) -> list[str]:
    return [f"{mark}   {_in_comment(port.name)}: {_shown(port)}" for port in ports]


def _in_comment(text: str) -> str:
    """A name of the model for a comment of one line: a name with a line break must not be code."""
    return text if text.isprintable() else json.dumps(text)


def _quoted(text: str) -> str:
    """A string of JavaScript, C++ and Swift."""
    if not text.isprintable():
        raise UnsupportedModel(
            f"the name {text!r} has characters that cannot be written into a loader\n"
            "rename the input or output"
        )
    return json.dumps(text, ensure_ascii=False)


def _kotlin_quoted(text: str) -> str:
    """A string of Kotlin, where $ begins a variable."""
    return _quoted(text).replace("$", "\\$")


def _javascript(
    package: str, read: str, file: str, inputs: Sequence[Port], outputs: Sequence[Port]
) -> str:
    names = make_variables([port.name for port in inputs])
    feeds = []
    for name, port in zip(names, inputs):
        array = _typed(port, _JAVASCRIPT, "JavaScript")
        feeds.append(
            f"    {_quoted(port.name)}: new ort.Tensor('{port.type}', {name}.data ?? new {array}("
            f"{port.count}), {name}.dims ?? {list(port.sizes)}),"
        )
    given = ", ".join(f"{name} = {{}}" for name in names)
    lines = [
        f"// Inputs ({{ data: typed array, dims: sizes }}) of {file}:",
        *_describe(inputs, "//"),
        "// Outputs:",
        *_describe(outputs, "//"),
        f"import * as ort from '{package}';",
        "",
        *read.splitlines(),
        "",
        f"export async function run({{ {given} }} = {{}}) {{",
        "  session ??= await open();",
        "  const outputs = await session.run({",
        *feeds,
        "  });",
        "  return {",
        *(f"    {_quoted(port.name)}: outputs[{_quoted(port.name)}]," for port in outputs),
        "  };",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _web(file: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    read = (
        "let session;\n"
        "async function open() {\n"
        f"  const url = new URL('./{file}', import.meta.url);\n"
        "  return ort.InferenceSession.create(url.href, { executionProviders: ['wasm'] });\n"
        "}"
    )
    return _javascript("onnxruntime-web/wasm", read, file, inputs, outputs)


def _node(file: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    read = (
        "import { fileURLToPath } from 'node:url';\n"
        "let session;\n"
        "async function open() {\n"
        f"  const path = fileURLToPath(new URL('./{file}', import.meta.url));\n"
        "  return ort.InferenceSession.create(path);\n"
        "}"
    )
    return _javascript("onnxruntime-node", read, file, inputs, outputs)


def _kotlin(file: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    names = make_variables([port.name for port in inputs])
    arguments, feeds = [], []
    for name, port in zip(names, inputs):
        buffer, array = _typed(port, _KOTLIN, "Kotlin")
        sizes = ", ".join(map(str, port.sizes))
        arguments.append(f"        {name}: {array}, {name}Shape: LongArray = longArrayOf({sizes}),")
        extra = ", OnnxJavaType.UINT8" if port.type == "uint8" else ""
        feeds.append(
            f"            {_kotlin_quoted(port.name)} to OnnxTensor.createTensor("
            f"environment, {buffer}.wrap({name}), {name}Shape{extra}),"
        )
    lines = [
        f"// Put {file} into src/main/assets. Inputs:",
        *_describe(inputs, "//"),
        "// Outputs:",
        *_describe(outputs, "//"),
        "// build.gradle:",
        '//   implementation("com.microsoft.onnxruntime:onnxruntime-android:latest.release")',
        "import ai.onnxruntime.OnnxJavaType",
        "import ai.onnxruntime.OnnxTensor",
        "import ai.onnxruntime.OrtEnvironment",
        "import android.content.Context",
        *sorted({f"import java.nio.{_typed(p, _KOTLIN, 'Kotlin')[0]}" for p in inputs}),
        "",
        "class Model(context: Context) : AutoCloseable {",
        "    private val environment = OrtEnvironment.getEnvironment()",
        f'    private val bytes = context.assets.open("{file}").use {{ it.readBytes() }}',
        "    private val session = environment.createSession(bytes)",
        "",
        "    fun run(",
        *arguments,
        "    ): Map<String, Any> {",
        "        val feeds = mapOf(",
        *feeds,
        "        )",
        "        try {",
        "            session.run(feeds).use { results ->",
        "                return results.associate { it.key to it.value.value }",
        "            }",
        "        } finally {",
        "            feeds.values.forEach { it.close() }",
        "        }",
        "    }",
        "",
        "    override fun close() = session.close()",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _swift(file: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    names = make_variables([port.name for port in inputs])
    arguments, feeds = [], []
    for name, port in zip(names, inputs):
        kind, number = _typed(port, _SWIFT, "Swift")
        sizes = ", ".join(map(str, port.sizes))
        arguments.append(f"{name}: [{number}], {name}Shape: [NSNumber] = [{sizes}]")
        feeds += [
            f"        let {name}Bytes = NSMutableData(",
            f"            bytes: {name}, length: {name}.count * MemoryLayout<{number}>.stride)",
            f"        let {name}Value = try ORTValue(",
            f"            tensorData: {name}Bytes, elementType: .{kind}, shape: {name}Shape)",
        ]
    stem, suffix = file.rsplit(".", 1)
    given = ", ".join(f"{_quoted(p.name)}: {n}Value" for n, p in zip(names, inputs))
    asked = ", ".join(_quoted(port.name) for port in outputs)
    lines = [
        f"// Add {file} to the app's bundle and onnxruntime-objc to its packages. Inputs:",
        *_describe(inputs, "//"),
        "// Outputs:",
        *_describe(outputs, "//"),
        "import Foundation",
        "import onnxruntime_objc",
        "",
        "final class Model {",
        "    private let environment: ORTEnv",
        "    private let session: ORTSession",
        "",
        "    init() throws {",
        "        environment = try ORTEnv(loggingLevel: .warning)",
        f'        let found = Bundle.main.path(forResource: "{stem}", ofType: "{suffix}")',
        "        guard let path = found else {",
        "            throw CocoaError(.fileNoSuchFile)",
        "        }",
        "        session = try ORTSession(env: environment, modelPath: path, sessionOptions: nil)",
        "    }",
        "",
        f"    func run({', '.join(arguments)}) throws -> [String: Data] {{",
        *feeds,
        "        let results = try session.run(",
        f"            withInputs: [{given}], outputNames: [{asked}], runOptions: nil)",
        "        return try results.mapValues { try $0.tensorData() as Data }",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _cpp(file: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    names = make_variables([port.name for port in inputs])
    feeds = []
    for name, port in zip(names, inputs):
        kind = _typed(port, _CPP, "C++")
        sizes = ", ".join(map(str, port.sizes))
        data = f"std::unique_ptr<bool[]> {name}(new bool[{port.count}]());"
        if kind != "bool":
            data = f"std::vector<{kind}> {name}({port.count});"
        where = f"{name}.get(), {port.count}" if kind == "bool" else f"{name}.data(), {name}.size()"
        feeds += [
            f"  {data}  // {_in_comment(port.name)}: {_shown(port)}",
            f"  std::vector<int64_t> {name}_shape{{{sizes}}};",
            f"  inputs.push_back(Ort::Value::CreateTensor<{kind}>(",
            f"      memory, {where}, {name}_shape.data(), {name}_shape.size()));",
        ]
    lines = [
        "// Build onnxruntime with ./build.sh and these options:",
        "//   --config MinSizeRel --minimal_build",
        "//   --include_ops_by_config required_operators_and_types.config",
        "//   --enable_reduced_operator_type_support --disable_exceptions --build_shared_lib",
        "// Outputs:",
        *_describe(outputs, "//"),
        "#include <cstdint>",
        "#include <cstdio>",
        "#include <memory>",
        "#include <vector>",
        "#include <onnxruntime_cxx_api.h>",
        "",
        "int main() {",
        '  Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "model");',
        f'  Ort::Session session(environment, ORT_TSTR("{file}"), Ort::SessionOptions{{}});',
        "  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);",
        "  std::vector<Ort::Value> inputs;",
        *feeds,
        f"  const char* input_names[] = {{{', '.join(_quoted(p.name) for p in inputs)}}};",
        f"  const char* output_names[] = {{{', '.join(_quoted(p.name) for p in outputs)}}};",
        "  auto outputs = session.Run(Ort::RunOptions{}, input_names, inputs.data(),",
        f"                             inputs.size(), output_names, {len(outputs)});",
        "  for (auto& output : outputs)",
        '    std::printf("%zu elements\\n",',
        "                output.GetTensorTypeAndShapeInfo().GetElementCount());",
        "}",
    ]
    return "\n".join(lines) + "\n"


_Make = Callable[[str, Sequence[Port], Sequence[Port]], str]
_LOADERS: dict[str, tuple[str, _Make]] = {
    "web": ("loader.mjs", _web),
    "node": ("loader.mjs", _node),
    "android": ("Model.kt", _kotlin),
    "ios": ("Model.swift", _swift),
    "minimal": ("main.cpp", _cpp),
}
