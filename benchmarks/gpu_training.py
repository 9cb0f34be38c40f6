"""Measure a training step on one GPU, bf16 and AdamW: ours compiled by Inductor, and torch.

    python benchmarks/gpu_training.py                 # every model, every engine, a file of results
    python benchmarks/gpu_training.py --models gpt2 --engines ours compile
    python benchmarks/gpu_training.py --small --device cpu   # tiny models, to try the script
    python benchmarks/gpu_training.py one gpt2 ours            # one engine in this process
    python benchmarks/gpu_training.py one gpt2 ours --profile  # its kernels and their times

Ours: the module in float32, exported by torch.onnx, trained by a TrainingSession with
InductorExecutionProvider and precision bf16 (sums of the residual stream, too, but with --promote
in float32, as autocast has them; with --products fp8, linear layers multiply in 8 bits): float32
parameters and AdamW's state on the device, the whole step recorded as a CUDA graph.
Peers: the same module in float32 under bfloat16 autocast with fused AdamW: eager, torch.compile,
and its modes "reduce-overhead" and "max-autotune" (left out if it has not compiled within --limit
seconds). Feeds are tensors on the device, the loss is not read. Each engine has a separate process:
those of a model compile in parallel, then each runs while the others wait. Times are medians over
rounds of ten steps. Memory is the peak that torch allocated during them, or what recorded CUDA
graphs hold, whichever is more. Dropout is 0.1, none inside attention.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import report
import torch

MODELS = ("gpt2", "bert", "bert-padded", "resnet50", "mlp")
PADDED = ("bert-padded",)
ENGINES = ("ours", "eager", "compile", "reduce-overhead", "max-autotune")
ROUNDS, STEPS, WARM = 10, 10, 8

Feeds = tuple[torch.Tensor, ...]  # the arguments of the module, then the labels


class Scores(torch.nn.Module):
    """A model of transformers that returns its scores in float32, a row for each label."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        given = {} if mask is None else {"attention_mask": mask}
        scores = self.model(x, **given).logits
        scores = scores if scores.dtype == torch.float64 else scores.float()
        return scores.reshape(-1, scores.shape[-1])


def module(name: str, small: bool, seed: int = 0) -> tuple[torch.nn.Module, Feeds]:
    """A module with its initial weights, and a batch."""
    torch.manual_seed(seed)
    makers: dict[str, Callable[[bool], Any]] = {
        "gpt2": _gpt2,
        "bert": _bert,
        "bert-padded": functools.partial(_bert, real=0.39),
        "resnet50": _resnet,
        "mlp": _mlp,
    }
    made: tuple[torch.nn.Module, Feeds] = makers[name](small)
    return made


def _gpt2(small: bool) -> tuple[torch.nn.Module, Feeds]:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512} if small else {}
    config = GPT2Config(attn_pdrop=0.0, use_cache=False, **size)
    ids = torch.randint(config.vocab_size, (2, 32) if small else (16, 1024))
    return Scores(GPT2LMHeadModel(config)), (ids, ids.roll(-1, 1).reshape(-1))


def _bert(small: bool, real: float = 1.0) -> tuple[torch.nn.Module, Feeds]:
    """Classification of sentences, of whose tokens a share is real and the rest padding."""
    from transformers import BertConfig, BertForSequenceClassification

    size = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
    size |= {"intermediate_size": 128, "vocab_size": 512} if small else {}
    config = BertConfig(attention_probs_dropout_prob=0.0, num_labels=2, **size)
    batch, length = (4, 32) if small else (64, 256)
    ids = torch.randint(config.vocab_size, (batch, length))
    most = round(2 * real * length)  # lengths are uniform around the mean
    lengths = torch.full((batch,), length) if real == 1 else torch.randint(1, most, (batch,))
    mask = (torch.arange(length) < lengths.clamp(max=length)[:, None]).long()
    labels = torch.randint(2, (batch,))
    return Scores(BertForSequenceClassification(config)), (ids, mask, labels)


def _resnet(small: bool) -> tuple[torch.nn.Module, Feeds]:
    from transformers import ResNetConfig, ResNetForImageClassification

    size: dict[str, Any] = {"num_labels": 1000}
    if small:
        size |= {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 10}
    config = ResNetConfig(**size)
    x = torch.randn((2, 3, 32, 32) if small else (128, 3, 224, 224))
    labels = torch.randint(config.num_labels, (len(x),))
    return Scores(ResNetForImageClassification(config)), (x, labels)


def _mlp(small: bool) -> tuple[torch.nn.Module, Feeds]:
    layers: list[torch.nn.Module] = []
    for size in (784, 256):
        layers += [torch.nn.Linear(size, 256), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10))
    return net, (torch.randn(64, 784), torch.randint(10, (64,)))


# -- one engine ------------------------------------------------------------------------------------


def open_session(
    name: str,
    net: torch.nn.Module,
    given: Sequence[torch.Tensor],
    device: str,
    *,
    bf16: bool,
    promote: bool = False,
    products: str | None = None,
    sparsity: str = "off",
    rate: float = 1e-4,
) -> Any:
    """A TrainingSession of an exported module with AdamW, compiled by Inductor."""
    import onward
    from onward import losses, optimizers

    net = net.train(name != "resnet50")  # the exporter cannot train BatchNorm
    exported = torch.onnx.export(
        net, tuple(given), dynamo=True, optimize=False, verbose=False, opset_version=23
    )
    assert exported is not None
    precision = onward.Precision(
        dtype="bf16", promote=promote, products=products, emulated=device == "cpu"
    )
    return onward.TrainingSession(
        exported.model,
        losses.CrossEntropy(),
        optimizers.AdamW(lr=rate),
        {"outputs": [], "precision": precision if bf16 else None, "sparsity": sparsity},
        providers=[("InductorExecutionProvider", {"device": device})],
    )


def ours(
    name: str, small: bool, device: str, promote: bool, products: str | None
) -> Callable[[], Any]:
    """A step of a TrainingSession."""
    net, (*given, labels) = module(name, small)
    sparsity = "auto" if name in PADDED else "off"
    chosen = {"promote": promote, "products": products, "sparsity": sparsity}
    session = open_session(name, net, given, device, bf16=True, **chosen)
    tensors = [x.to(device) for x in (*given, labels)]
    if name in PADDED:  # a data loader has the mask in host memory
        tensors[1] = given[1]
    feeds = dict(zip(session.input_names, tensors))
    return lambda: session.step(feeds)


def torch_step(name: str, small: bool, device: str, engine: str) -> Callable[[], Any]:
    """A training step of torch."""
    net, given = module(name, small)
    net, feeds = net.to(device).train(), [x.to(device) for x in given]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def loss(*feeds: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return torch.nn.functional.cross_entropy(net(*feeds[:-1]).float(), feeds[-1])

    if engine == "max-autotune":  # hundreds of lines about kernels that it tried
        torch._inductor.config.autotune_num_choices_displayed = 0
        logging.getLogger("torch._inductor.select_algorithm").setLevel(logging.CRITICAL)
    mode = None if engine == "compile" else engine
    call = loss if engine == "eager" else torch.compile(loss, mode=mode)

    def step() -> None:
        call(*feeds).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def one(make_step: Callable[[], Callable[[], Any]], device: str, profiled: bool) -> None:
    """In a child process: compile a step, then print its kernels, or measure it on request."""
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    step = make_step()
    if profiled:
        print_kernels(step, device)
    else:
        answer_requests(step, device, began)


def answer_requests(step: Callable[[], Any], device: str, began: float) -> None:
    """Warm a step up, report, and measure it on request."""
    cuda = device == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    for _ in range(WARM):
        step()
    wait()
    ready = time.perf_counter() - began
    print(json.dumps({"ready": round(ready)}), flush=True)
    sys.stdin.readline()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        wait()
        times.append((time.perf_counter() - began) / STEPS * 1e3)
    peak = used_memory() / 2**30 if cuda else 0.0
    print(json.dumps({"ms": round(statistics.median(times), 3), "gib": round(peak, 2)}), flush=True)


def print_kernels(step: Callable[[], Any], device: str) -> None:
    """The time from the first to the last kernel of a step, and the kernels by their time."""
    kind = "CUDA" if device == "cuda" else "CPU"
    for _ in range(WARM):
        step()
    with torch.profiler.profile(
        activities=[getattr(torch.profiler.ProfilerActivity, kind)]
    ) as profile:
        for _ in range(STEPS):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    wanted = getattr(torch.autograd.DeviceType, kind)
    events = [event for event in profile.events() or () if event.device_type == wanted]
    for event in events:
        times.setdefault(event.name, []).append(event.time_range.elapsed_us())
    ends = [event.time_range for event in events]
    span = max(each.end for each in ends) - min(each.start for each in ends)
    print(f"{span / STEPS / 1e3:8.3f} ms a step, from the first start to the last end")
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:50]:
        print(f"{sum(each) / STEPS / 1e3:8.3f} ms {len(each) / STEPS:7.1f} times  {name[:100]}")


def used_memory() -> int:
    """The bytes that steps need: at their peak, or held by recorded CUDA graphs."""
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    return max(peak, torch.cuda.memory_reserved())


# -- all of them -----------------------------------------------------------------------------------


Start = Callable[[str, str], "subprocess.Popen[str]"]  # of a model and an engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser, MODELS, ENGINES)
    parser.add_argument("--promote", action="store_true", help="sums of both types in float32")
    parser.add_argument("--products", choices=("fp8",), help="the type of linear layers' products")
    if sys.argv[1:2] == ["one"]:
        parser.add_argument("one", nargs=3)
        given = parser.parse_args()
        _, name, engine = given.one
        wanted = {"name": name, "small": given.small, "device": given.device}
        if engine == "ours":
            make_step = functools.partial(
                ours, **wanted, promote=given.promote, products=given.products
            )
        else:
            make_step = functools.partial(torch_step, **wanted, engine=engine)
        one(make_step, given.device, given.profile)
        return
    given = parser.parse_args()
    rows = measure_all(given, functools.partial(start, given=given))
    if not given.small:
        print(report.write("gpu_training", rows, gpu=gpu_name(given.device)))


def add_arguments(
    parser: argparse.ArgumentParser, models: Sequence[str], engines: Sequence[str]
) -> None:
    """What benchmarks of a GPU understand."""
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--engines", nargs="+", default=engines, choices=engines)
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--together", type=int, default=1, help="models that compile at once")
    parser.add_argument("--limit", type=float, default=600, help="seconds to compile a step")
    parser.add_argument("--profile", action="store_true", help="print kernels and their times")


def measure_all(given: argparse.Namespace, start: Start) -> list[dict[str, Any]]:
    """The rows of all models and engines, printed as they are measured."""
    rows = []
    print(f"{'model':12} {'engine':16} {'ms':>8} {'GiB':>7} {'ready s':>8}")
    for first in range(0, len(given.models), given.together):
        names = given.models[first : first + given.together]
        pairs = [(name, engine) for name in names for engine in given.engines]
        rows += measure(pairs, start, given.limit)
    return rows


def measure(pairs: Sequence[tuple[str, str]], start: Start, limit: float) -> list[dict[str, Any]]:
    """Compile these models and engines at once, then measure one after the other."""
    rows = []
    children = {pair: start(*pair) for pair in pairs}
    with ThreadPoolExecutor(len(children)) as pool:
        await_ready = functools.partial(answer_within, limit)
        ready = dict(zip(children, pool.map(await_ready, children.values())))
    for (name, engine), child in children.items():
        found = {**ready[name, engine], **answer(child, "go\n")}
        rows.append({"model": name, "engine": engine, **found})
        ms, gib, seconds = (str(found.get(key, "-")) for key in ("ms", "gib", "ready"))
        print(f"{name:12} {engine:16} {ms:>8} {gib:>7} {seconds:>8}", flush=True)
        child.kill()
        child.wait()
    return rows


def start(name: str, engine: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    """Start an engine in a separate process."""
    command = [str(Path(__file__).resolve()), "one", name, engine, "--device", given.device]
    products = ["--products", given.products] if given.products else []
    return start_child([*command, *["--promote"] * given.promote, *products], given)


def start_child(command: Sequence[str], given: argparse.Namespace) -> subprocess.Popen[str]:
    """Start a script that measures on request."""
    return subprocess.Popen(
        [sys.executable, *command, *["--small"] * given.small],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    )


def answer_within(limit: float, child: subprocess.Popen[str]) -> dict[str, Any]:
    """What an engine says when it is ready; it is killed if that takes too long."""
    timer = threading.Timer(limit, child.kill)
    timer.start()
    found = answer(child)
    timer.cancel()
    return found


def answer(child: subprocess.Popen[str], question: str = "") -> dict[str, Any]:
    """An engine's answer; nothing if it has failed, after its error was printed."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(question)
        child.stdin.flush()
    except BrokenPipeError:
        return {"failed": True}
    line = child.stdout.readline()
    found: dict[str, Any] = json.loads(line) if line.startswith("{") else {"failed": True}
    return found


def gpu_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
