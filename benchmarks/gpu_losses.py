"""Compare the losses of 50 training steps with eager PyTorch, in float32 and in bfloat16.

    python benchmarks/gpu_losses.py                        # GPT-2, BERT, ResNet-50, MLP on a GPU
    python benchmarks/gpu_losses.py --small --device cpu   # tiny models, to try the script

Every step has another batch, dropout is 0, AdamW; the residual blocks of ResNet-50 start with a
scale of 0. `float32` is the largest difference between our losses and eager's in float32; `f64
ours` and `f64 eager` are the largest differences of both from eager's losses in float64: how far
rounding alone takes each. `bf16 ours` and `bf16 eager` are the mean distances of the losses in
bfloat16 (ours by a pass, torch's by autocast) to eager's in float32; `bf16 promoted` is ours with
sums of both types in float32, the default, and `fp8` with products of linear layers in 8 bits, too.
Each run has a separate process; several run at the same time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

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
        promote=kind in ("promoted", "fp8"),
        products="fp8" if kind == "fp8" else None,
        rate=RATE,
    )
    found = []
    for batch in batches:
        feeds = dict(zip(session.input_names, (x.to(device) for x in batch)))
        found.append(session.step(feeds)["loss"])
    return [float(loss) for loss in found]


RUNS = {  # by the names that figures have for them
    "eager float32": (eager, "float32"),
    "eager float64": (eager, "float64"),
    "eager bf16": (eager, "bf16"),
    "ours float32": (ours, "float32"),
    "ours bf16": (ours, "bf16"),
    "ours promoted": (ours, "promoted"),
    "ours fp8": (ours, "fp8"),
}
NO_LINEAR = (
    "resnet50",
)  # nothing to multiply in 8 bits but the last product, which stays as it is
FIGURES = ("float32", "f64_ours", "f64_eager", "bf16_ours", "bf16_promoted", "fp8", "bf16_eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    models = gpu_training.MODELS
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--seeds", type=int, default=1, help="runs with other weights and batches")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--together", type=int, default=12, help="processes at once")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "SEED", "RUN"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, seed, run = given.one
        print(json.dumps(losses_of(name, int(seed), run, given.small, given.device)))
        return
    rows = []
    titles = (figure.replace("_", " ") for figure in FIGURES)
    print(f"{'model':12} {'seed':>4} {'last':>8} " + " ".join(f"{title:>13}" for title in titles))
    with ThreadPoolExecutor(given.together) as pool:
        started = {
            (name, seed): {
                run: pool.submit(_in_child, name, seed, run, given) for run in runs_of(name)
            }
            for name in given.models
            for seed in range(given.seeds)
        }
        for (name, seed), runs in started.items():
            figures = compare({run: found.result() for run, found in runs.items()})
            rows.append({"model": name, "seed": seed, **figures})
            print(
                f"{name:12} {seed:4} {figures['last']:8.4f} "
                + " ".join(
                    f"{figures[figure]:13.2e}" if figure in figures else f"{'-':>13}"
                    for figure in FIGURES
                ),
                flush=True,
            )
    if not given.small:
        print(report.write("gpu_losses", rows, gpu=gpu_training.gpu_name(given.device)))


def runs_of(name: str) -> list[str]:
    """The runs of a model."""
    return [run for run in RUNS if run != "ours fp8" or name not in NO_LINEAR]


def losses_of(name: str, seed: int, run: str, small: bool, device: str) -> list[float]:
    """The losses of one run, in this process."""
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False  # as products have it by default
    engine, kind = RUNS[run]
    return engine(name, seed, small, device, kind)


def compare(losses: dict[str, list[float]]) -> dict[str, float]:
    """How far the runs of a model are from each other."""
    wanted, exact = losses["eager float32"], losses["eager float64"]
    found = losses["ours float32"]
    figures = {
        "first": wanted[0],
        "last": wanted[-1],
        "float32": max(_distances(found, wanted)),
        "f64_ours": max(_distances(found, exact)),
        "f64_eager": max(_distances(wanted, exact)),
        "bf16_ours": _mean_distance(losses["ours bf16"], wanted),
        "bf16_promoted": _mean_distance(losses["ours promoted"], wanted),
        "bf16_eager": _mean_distance(losses["eager bf16"], wanted),
    }
    if "ours fp8" in losses:
        figures["fp8"] = _mean_distance(losses["ours fp8"], wanted)
    return figures


def _in_child(name: str, seed: int, run: str, given: argparse.Namespace) -> list[float]:
    command = [sys.executable, __file__, "--one", name, str(seed), run, "--device", given.device]
    command += ["--small"] * given.small
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    losses: list[float] = json.loads(done.stdout.splitlines()[-1])
    return losses


def _distances(one: list[float], other: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other)]


def _mean_distance(one: list[float], other: list[float]) -> float:
    return sum(_distances(one, other)) / len(one)


if __name__ == "__main__":
    main()
