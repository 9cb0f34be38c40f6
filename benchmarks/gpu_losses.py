"""Compare the losses of 50 training steps with eager PyTorch, in float32 and in bfloat16.

    python benchmarks/gpu_losses.py                        # GPT-2, BERT, ResNet-50, MLP on a GPU
    python benchmarks/gpu_losses.py --small --device cpu   # tiny models, to try the script

Every step has another batch, dropout is 0, AdamW; the residual blocks of ResNet-50 start with a
scale of 0. `float32` is the largest difference between our losses and eager's; `bf16 ours` and
`bf16 eager` are the mean distances of the losses in bfloat16 (ours by a pass, torch's by autocast)
to eager's in float32. Each model has a separate process; they run at the same time.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpu_training
import report
import torch

STEPS = 50
RATE = 1e-4


def module(name: str, small: bool) -> tuple[torch.nn.Module, list[gpu_training.Feeds]]:
    """A module without dropout, and a batch for each step: an eighth of the benchmark's."""
    net, feeds = gpu_training.module(name, small)
    for part in net.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    if name == "resnet50":
        start_at_identity(net)
    rows = len(feeds[0]) if small else max(len(feeds[0]) // 8, 2)
    share = len(feeds[-1]) // len(feeds[0])  # labels of a row
    kept = tuple(x[: rows * (share if x is feeds[-1] else 1)] for x in feeds)
    return net, [_shuffled(kept, step) for step in range(STEPS)]


def start_at_identity(net: torch.nn.Module) -> None:
    """Set the last scale of each residual block to 0, as ResNets are often trained.

    Without it, two runs of eager itself (with and without channels_last) differ by 0.1 after a few
    steps: the first gradients are so large that rounding decides.
    """
    for name, part in net.named_modules():
        if name.endswith("layer.2.normalization"):
            torch.nn.init.zeros_(part.weight)


def _shuffled(feeds: gpu_training.Feeds, step: int) -> gpu_training.Feeds:
    """A batch with other contents, the mask left as it is."""
    draw = torch.Generator().manual_seed(step)
    found = []
    for i, x in enumerate(feeds):
        if x.is_floating_point():
            found.append(torch.randn(x.shape, generator=draw))
        elif len(feeds) == 3 and i == 1:
            found.append(x)
        else:
            found.append(torch.randint(int(x.max()) + 1, x.shape, generator=draw))
    return tuple(found)


def eager(name: str, small: bool, device: str, bf16: bool) -> list[float]:
    net, batches = module(name, small)
    net = net.to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    losses = []
    for batch in batches:
        *given, labels = (x.to(device) for x in batch)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = torch.nn.functional.cross_entropy(net(*given).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def ours(name: str, small: bool, device: str, bf16: bool) -> list[float]:
    net, batches = module(name, small)
    given = batches[0][:-1]
    session = gpu_training.open_session(name, net, given, device, bf16=bf16, rate=RATE)
    found = []
    for batch in batches:
        feeds = dict(zip(session.input_names, (x.to(device) for x in batch)))
        found.append(session.step(feeds)["loss"])
    return [float(loss) for loss in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    models = gpu_training.MODELS
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", choices=models, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(compare(given.one, given.small, given.device)))
        return
    rows = []
    print(
        f"{'model':12} {'first':>8} {'last':>8} {'float32':>9} {'bf16 ours':>10} {'bf16 eager':>10}"
    )
    with ThreadPoolExecutor() as pool:
        for row in pool.map(lambda name: _in_child(name, given), given.models):
            rows.append(row)
            numbers = [row[key] for key in ("float32", "bf16_ours", "bf16_eager")]
            print(
                f"{row['model']:12} {row['first']:8.4f} {row['last']:8.4f} "
                + " ".join(f"{number:9.2e}" for number in numbers),
                flush=True,
            )
    if not given.small:
        gpu = torch.cuda.get_device_name() if given.device == "cuda" else given.device
        print(report.write("gpu_losses", rows, gpu=gpu))


def compare(name: str, small: bool, device: str) -> dict[str, Any]:
    """A model's losses compared, in this process."""
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False  # as products have it by default
    run = functools.partial(_run, name=name, small=small, device=device)
    wanted = run(eager, bf16=False)
    return {
        "model": name,
        "first": wanted[0],
        "last": wanted[-1],
        "float32": max(_distances(run(ours, bf16=False), wanted)),
        "bf16_ours": sum(_distances(run(ours, bf16=True), wanted)) / STEPS,
        "bf16_eager": sum(_distances(run(eager, bf16=True), wanted)) / STEPS,
    }


def _in_child(name: str, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, "--device", given.device]
    command += ["--small"] * given.small
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _run(engine: Any, *, name: str, small: bool, device: str, bf16: bool) -> list[float]:
    losses: list[float] = engine(name, small, device, bf16)
    torch._dynamo.reset()
    return losses


def _distances(one: list[float], other: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other)]


if __name__ == "__main__":
    main()
