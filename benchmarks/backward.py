"""Forward and backward of six small models, on stock onnxruntime and on torch.

    python benchmarks/backward.py            # every model, every engine, and a file of results
    python benchmarks/backward.py mlp1 cnn32 --engines ours,eager --pin 0,1
    python benchmarks/backward.py one cnn32 ours

Ours: the model exported by torch, its loss added, extended by `onward.gradient` with respect to
every parameter, rewritten by `fuse_for_onnxruntime` for this processor, and run by a bare
onnxruntime.InferenceSession with bound buffers, 2 threads.
Peers: torch eager and torch.compile, 2 threads. Each engine runs in a separate process, in turns;
figures are medians of medians. The time to build the gradient graph is measured, too, for two
models of 1,000 nodes.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
import racing
import report

MODELS = ("mlp1", "mlp32", "cnn32", "tf8", "resnet", "lstm")
ENGINES = ("ours", "eager", "compile")


def modules(name: str) -> tuple[Any, Any, Any]:
    """The module, its input and its labels: the training benchmarks' models."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    class Block(nn.Module):
        def __init__(self, d: int, heads: int) -> None:
            super().__init__()
            self.ln1, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ln2, self.f1, self.f2 = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.heads = heads

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            size = d // self.heads
            q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, size).permute(2, 0, 3, 1, 4)
            a = torch.softmax(q @ k.transpose(-1, -2) / size**0.5, -1) @ v
            x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
            return x + self.f2(f.gelu(self.f1(self.ln2(x))))

    class Transformer(nn.Module):
        def __init__(self, words: int = 1000, d: int = 128, heads: int = 4, time: int = 64) -> None:
            super().__init__()
            self.e, self.p = nn.Embedding(words, d), nn.Parameter(torch.zeros(time, d))
            self.blocks = nn.Sequential(*(Block(d, heads) for _ in range(4)))
            self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, words)

        def forward(self, x: Any) -> Any:
            return self.head(self.ln(self.blocks(self.e(x) + self.p))).flatten(0, 1)

    def mlp() -> Any:
        layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(256, 10))

    def cnn() -> Any:
        layers: list[Any] = []
        for inputs, outputs, stride in [(3, 32, 1), (32, 64, 2), (64, 128, 2)]:
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, stride=stride)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def conv_norm(inputs: int, outputs: int, size: int, stride: int) -> Any:
        conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs))

    class Residual(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.a = conv_norm(inputs, outputs, 3, stride)
            self.b = conv_norm(outputs, outputs, 3, 1)
            self.skip = nn.Identity() if stride == 1 else conv_norm(inputs, outputs, 1, stride)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.skip(x) + self.b(torch.relu(self.a(x))))

    def resnet() -> Any:
        """ResNet-18: residual blocks 2-2-2-2 of 64 to 512 channels."""
        layers: list[Any] = [conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for inputs, outputs in [(64, 64), (64, 128), (128, 256), (256, 512)]:
            layers += [Residual(inputs, outputs, outputs // inputs), Residual(outputs, outputs, 1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    class Tagger(nn.Module):
        def __init__(self, words: int = 1000, d: int = 128, tags: int = 20) -> None:
            super().__init__()
            self.e, self.head = nn.Embedding(words, d), nn.Linear(2 * d, tags)
            self.lstm = nn.LSTM(d, d, batch_first=True, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.e(x))[0]).flatten(0, 1)

    torch.manual_seed(0)
    made = {
        "mlp1": lambda: (mlp(), torch.randn(1, 784), torch.randint(0, 10, (1,))),
        "mlp32": lambda: (mlp(), torch.randn(32, 784), torch.randint(0, 10, (32,))),
        "cnn32": lambda: (cnn(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))),
        "tf8": lambda: (
            Transformer(),
            torch.randint(0, 1000, (8, 64)),
            torch.randint(0, 1000, (512,)),
        ),
        "resnet": lambda: (resnet(), torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))),
        "lstm": lambda: (
            Tagger(),
            torch.randint(0, 1000, (16, 32)),
            torch.randint(0, 20, (512,)),
        ),
    }[name]()
    return made


def ours(name: str) -> Any:
    """One call of the gradient model on a bare onnxruntime session, with bound memory."""
    import onnx_ir as ir
    import onnxruntime

    model, feeds, parameters = training_model(name)
    data = ir.to_proto(model).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for key, array in {**feeds, **parameters}.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(key, value)
    for output in session.get_outputs():
        shape = [int(size) for size in output.shape]
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
        binding.bind_ortvalue_output(output.name, value)
    return lambda: session.run_with_iobinding(binding)


def training_model(name: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The model with its loss and the gradient of every parameter; parameters are inputs."""
    import onnx_ir as ir
    import torch

    import onward
    from onward.providers.ort.processor_probe import processor_probe
    from onward.providers.ort.processors import find_processor
    from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime

    module, x, labels = modules(name)
    module.eval()
    program = torch.onnx.export(module, (x,), dynamo=True, optimize=False, verbose=False)
    model = program.model
    logits = model.graph.outputs[0]
    shape = ir.Shape(labels.shape)
    target = ir.val("labels", dtype=ir.DataType.INT64, shape=shape)
    loss = ir.node("SoftmaxCrossEntropyLoss", [logits, target], {"reduction": "mean"})
    loss.outputs[0].name = "loss"
    loss.outputs[0].type, loss.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
    model.graph.append(loss)
    model.graph.inputs.append(target)
    model.graph.outputs[:] = [loss.outputs[0]]
    for node in model.graph:
        if node.op_type == "BatchNormalization":  # the exporter writes it for inference
            set_training_mode(node)
    parameters = {}
    for key, tensor in module.named_parameters():
        value = model.graph.initializers.pop(key)
        value.const_value = None
        model.graph.inputs.append(value)
        parameters[key] = tensor.detach().numpy()
    processor = find_processor(processor_probe())
    extended = fuse_for_onnxruntime(onward.gradient(model, "loss", list(parameters)), processor)
    feeds = {model.graph.inputs[0].name: x.numpy(), "labels": labels.numpy()}
    return extended, feeds, parameters


def set_training_mode(node: Any) -> None:
    """Batch statistics, as torch's module computes in training mode."""
    import onnx_ir as ir

    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    node.resize_outputs(3)
    for index, kind in ((1, "mean"), (2, "var")):
        value = node.outputs[index]
        value.name = f"{node.outputs[0].name}_{kind}"
        value.type, value.shape = node.inputs[3].type, node.inputs[3].shape


def peer(name: str, compiled: bool) -> Any:
    import torch
    from torch.nn import functional as f

    torch.set_num_threads(2)
    module, x, labels = modules(name)
    call = torch.compile(module) if compiled else module

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        f.cross_entropy(call(x), labels).backward()

    return step


def one(name: str, engine: str) -> None:
    """In a child process: answer each line with the median of calls, in milliseconds."""
    warnings.filterwarnings("ignore")
    step = ours(name) if engine == "ours" else peer(name, engine == "compile")
    for _ in range(8):
        step()
    racing.answer(step, lambda ms: ms)


def race(name: str, engines: list[str], rounds: int) -> list[dict[str, Any]]:
    racing.tell(f"{name}: {rounds} rounds of {', '.join(engines)}")
    children = {engine: racing.start(__file__, name, engine) for engine in engines}
    answers = racing.race(children, rounds)
    found = {engine: statistics.median(times) for engine, times in answers.items()}
    rows = [{"model": name, "engine": engine, "ms": ms} for engine, ms in found.items()]
    for row in rows:
        racing.tell(f"{name} {row['engine']}: {row['ms']:.3f} ms")
    torch = [found[engine] for engine in ("eager", "compile") if engine in found]
    if not torch or "ours" not in found:
        return rows
    ratio = min(torch) / found["ours"]
    return [*rows, {"model": name, "engine": "better torch over ours", "ms": ratio}]


def chain() -> tuple[Any, list[str]]:
    """A model of 1,001 nodes: 250 layers of x + tanh(x w + b); and its parameters."""
    import onward

    op = onward.OpBuilder()
    x = op.input("x", "float32", (8, 64))
    for layer in range(250):
        w = op.initializer(f"w{layer}", np.zeros((64, 64), np.float32))
        b = op.initializer(f"b{layer}", np.zeros(64, np.float32))
        x = op.Add(x, op.Tanh(op.Add(op.MatMul(x, w), b)))
    model = op.model(y=op.ReduceSum(x, keepdims=0))
    return model, [f"{kind}{layer}" for kind in "wb" for layer in range(250)]


def transformer(layers: int = 31, d: int = 32, heads: int = 4) -> tuple[Any, list[str]]:
    """A model of 994 nodes: tf8's blocks as torch.onnx writes them; and its parameters."""
    import onward

    op, names = onward.OpBuilder(), []
    batch, time, size = 2, 16, d // heads

    def parameter(*shape: int) -> Any:
        names.append(f"w{len(names)}")
        return op.initializer(names[-1], np.zeros(shape, np.float32))

    def linear(x: Any, inputs: int, outputs: int) -> Any:
        w = op.Transpose(parameter(outputs, inputs), perm=[1, 0])
        return op.Add(op.MatMul(x, w), parameter(outputs))

    def norm(x: Any) -> Any:
        return op.LayerNormalization(x, parameter(d), parameter(d), axis=-1)

    x = op.input("x", "float32", (batch, time, d))
    for _ in range(layers):
        three = op.Reshape(linear(norm(x), d, 3 * d), [batch, time, 3, heads, size])
        three = op.Transpose(three, perm=[2, 0, 3, 1, 4])
        q, k, v = (op.Squeeze(op.Slice(three, [i], [i + 1], [0]), [0]) for i in range(3))
        scores = op.Div(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), size**0.5)
        a = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = op.Add(x, linear(op.Reshape(a, [batch, time, d]), d, d))
        x = op.Add(x, linear(op.Gelu(linear(norm(x), d, 4 * d)), 4 * d, d))
    return op.model(y=op.ReduceSum(op.Mul(x, x), keepdims=0)), names


def building() -> list[dict[str, Any]]:
    """Seconds to build the gradient graph of 1,000 nodes, with respect to every parameter."""
    import onward

    onward.gradient(*_smallest())  # imports do not count
    rows = []
    for build in (chain, transformer):
        model, names = build()
        start, cpu = time.perf_counter(), time.process_time()
        extended = onward.gradient(model, "y", names)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        counts = {"nodes": len(model.graph), "nodes_after": len(extended.graph)}
        row = {"model": build.__name__, **counts, "gradients": len(names)}
        rows.append({**row, "seconds": seconds, "cpu_seconds": cpu})
    return rows


def _smallest() -> tuple[Any, str, str]:
    import onward

    op = onward.OpBuilder()
    return op.model(y=op.ReduceSum(op.input("x", "float32", (2,)), keepdims=0)), "y", "x"


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    given = racing.arguments(__doc__ or "", MODELS, ENGINES)
    built = building() if given.whole else []
    for row in built:
        print("gradient graph of {nodes} nodes ({model}) built in {seconds:.2f} s".format(**row))
    rows = []
    for name in given.models:
        rows += race(name, given.engines, given.rounds)
    table = Table("model", "engine", "ms (or ratio)", title="forward and backward, 2 threads")
    for row in rows:
        table.add_row(row["model"], row["engine"], f"{row['ms']:.3f}")
    Console().print(table)
    if given.whole or given.output:
        print("written to", report.write("backward", rows, given.output, building=built))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        main()
