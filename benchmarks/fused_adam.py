"""FusedAdam against torch.optim.AdamW (fused, foreach): the time of one step.

    python benchmarks/fused_adam.py [--device cuda] [--repeat 50]

The parameters are GPT-2's shapes (148 tensors, 124 million numbers), or a tenth of them in width on
the CPU. Prints the fastest of the steps in milliseconds, which other work disturbs least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from onward.training.optim import AdamWMode, FusedAdam


def shapes(width: int, vocabulary: int) -> list[tuple[int, ...]]:
    """The parameters of GPT-2 with 12 layers."""
    layer: list[tuple[int, ...]] = [(width,)] * 6 + [(3 * width,), (4 * width,)]
    layer += [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return [(vocabulary, width), (1024, width), *layer * 12, (width,), (width,)]


def time_step(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], device: str,
              dtype: torch.dtype, repeat: int) -> float:  # fmt: skip
    small = device == "cpu"
    sizes = shapes(96, 5000) if small else shapes(768, 50257)
    params = [torch.randn(size, device=device, dtype=dtype).requires_grad_() for size in sizes]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = make(params)
    times = []
    for _ in range(repeat + 5):
        if not small:
            torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        if not small:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeat", type=int, default=50)
    given = parser.parse_args()
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    makers: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
        f"FusedAdam {mode.name}": lambda params, mode=mode: FusedAdam(  # type: ignore[misc]
            params, adam_w_mode=mode, **settings
        )
        for mode in AdamWMode
    }
    makers["torch AdamW fused"] = lambda params: torch.optim.AdamW(params, fused=True, **settings)
    makers["torch AdamW foreach"] = lambda params: torch.optim.AdamW(
        params, foreach=True, **settings
    )
    print(f"torch {torch.__version__}, {given.device}, {torch.get_num_threads()} threads")
    for dtype in (torch.float32, torch.bfloat16):
        for name, make in makers.items():
            found = time_step(make, given.device, dtype, given.repeat)
            print(f"{str(dtype).removeprefix('torch.'):9} {name:35} {found:8.3f} ms")


if __name__ == "__main__":
    main()
