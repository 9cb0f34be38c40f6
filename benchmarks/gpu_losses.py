"""Compare the losses of 50 training steps with eager PyTorch, in float32 and in bfloat16.

    python benchmarks/gpu_losses.py                        # GPT-2, BERT, ResNet-50, MLP on a GPU
    python benchmarks/gpu_losses.py --small --device cpu   # tiny models, to try the script

Every step has another batch, dropout is 0, AdamW; the residual blocks of ResNet-50 start with a
scale of 0. `float32` is the largest difference between our losses and eager's in float32; `f64
ours` and `f64 eager` are the largest differences of both from eager's losses in float64: how far
rounding alone takes each. `bf16 ours` and `bf16 eager` are the mean distances of the losses in
bfloat16 (ours by a pass, torch's by autocast) to eager's in float32; `bf16 promoted` is ours with
sums of both types in float32, the default. Each model and seed has a separate process; they run at
the same time.
"""

from __future__ import annotations

import argparse
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


def module(name: str, seed: int, small: bool) -> tuple[torch.nn.Module, list[gpu_training.Feeds]]:
    """A module without dropout, and a batch for each step: an eighth of the benchmark's."""
    net, feeds = gpu_training.module(name, small, seed)
    for part in net.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    if name == "resnet50":
        start_at_identity(net)
    rows = len(feeds[0]) if small else max(len(feeds[0]) // 8, 2)
    share = len(feeds[-1]) // len(feeds[0])  # labels of a row
    kept = tuple(x[: rows * (share if x is feeds[-1] else 1)] for x in feeds)
    return net, [_shuffled(kept, seed * STEPS + step) for step in range(STEPS)]


def start_at_identity(net: torch.nn.Module) -> None:
    """Set the last scale of each residual block to 0, as ResNets are often trained.

    Without it, two runs of eager itself (with and without channels_last) differ by 0.1 after a few
    steps: the first gradients are so large that rounding decides.
    """
    for name, part in net.named_modules():
        if name.endswith("layer.2.normalization"):
            torch.nn.init.zeros_(part.weight)


def _shuffled(feeds: gpu_training.Feeds, step: int) -> gpu_training.Feeds:
    """A batch with other contents, the mask left as it is; no token 0.

    BERT has it for padding, whose row eager does not train, and which an exported graph trains as
    any other.
    """
    draw = torch.Generator().manual_seed(step)
    found = []
    for i, x in enumerate(feeds):
        if x.is_floating_point():
            found.append(torch.randn(x.shape, generator=draw))
        elif len(feeds) == 3 and i == 1:
            found.append(x)
        else:
            least = 1 if x.dim() > 1 else 0  # of tokens, of labels
            found.append(torch.randint(least, int(x.max()) + 1, x.shape, generator=draw))
    return tuple(found)


def eager(name: str, seed: int, small: bool, device: str, kind: str) -> list[float]:
    net, batches = module(name, seed, small)
    dtype = torch.float64 if kind == "float64" else torch.float32
    net = net.to(device, dtype).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    losses = []
    for batch in batches:
        moved = (x.to(device, dtype if x.is_floating_point() else None) for x in batch)
        *given, labels = moved
        with torch.autocast(device, torch.bfloat16, enabled=kind == "bf16"):
            scores = net(*given)
            if kind == "bf16":
                scores = scores.float()
            loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def ours(name: str, seed: int, small: bool, device: str, kind: str) -> list[float]:
    net, batches = module(name, seed, small)
    session = gpu_training.open_session(
        name,
        net,
        batches[0][:-1],
        device,
        bf16=kind != "float32",
        promote=kind == "promoted",
        rate=RATE,
    )
    found = []
    for batch in batches:
        feeds = dict(zip(session.input_names, (x.to(device) for x in batch)))
        found.append(session.step(feeds)["loss"])
    return [float(loss) for loss in found]


FIGURES = ("float32", "f64_ours", "f64_eager", "bf16_ours", "bf16_promoted", "bf16_eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    models = gpu_training.MODELS
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--seeds", type=int, default=1, help="runs with other weights and batches")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, seed = given.one
        print(json.dumps(compare(name, int(seed), given.small, given.device)))
        return
    rows = []
    titles = (figure.replace("_", " ") for figure in FIGURES)
    print(f"{'model':12} {'seed':>4} {'last':>8} " + " ".join(f"{title:>13}" for title in titles))
    pairs = [(name, seed) for name in given.models for seed in range(given.seeds)]
    with ThreadPoolExecutor() as pool:
        for row in pool.map(lambda pair: _in_child(*pair, given), pairs):
            rows.append(row)
            print(
                f"{row['model']:12} {row['seed']:4} {row['last']:8.4f} "
                + " ".join(f"{row[figure]:13.2e}" for figure in FIGURES),
                flush=True,
            )
    if not given.small:
        print(report.write("gpu_losses", rows, gpu=gpu_training.gpu_name(given.device)))


def compare(name: str, seed: int, small: bool, device: str) -> dict[str, Any]:
    """A model's losses compared, in this process."""
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False  # as products have it by default

    def run(engine: Any, kind: str) -> list[float]:
        losses: list[float] = engine(name, seed, small, device, kind)
        torch._dynamo.reset()
        return losses

    wanted, exact = run(eager, "float32"), run(eager, "float64")
    found = run(ours, "float32")
    return {
        "model": name,
        "seed": seed,
        "first": wanted[0],
        "last": wanted[-1],
        "float32": max(_distances(found, wanted)),
        "f64_ours": max(_distances(found, exact)),
        "f64_eager": max(_distances(wanted, exact)),
        "bf16_ours": sum(_distances(run(ours, "bf16"), wanted)) / STEPS,
        "bf16_promoted": sum(_distances(run(ours, "promoted"), wanted)) / STEPS,
        "bf16_eager": sum(_distances(run(eager, "bf16"), wanted)) / STEPS,
    }


def _in_child(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, str(seed), "--device", given.device]
    command += ["--small"] * given.small
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _distances(one: list[float], other: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other)]


if __name__ == "__main__":
    main()
