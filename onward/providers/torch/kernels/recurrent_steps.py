"""Run a recurrent layer step by step: activations, directions, the loop over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

from onward.providers.torch.dtypes import Tensor

Activation = Callable[[Tensor], Tensor]
Step = Callable[..., tuple[Tensor, ...]]  # (x W^T for all gates, *states) -> new states

# name -> (function, default alpha, default beta); None where it takes none
_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], float | None, float | None]] = {
    "relu": (torch.relu, None, None),
    "tanh": (torch.tanh, None, None),
    "sigmoid": (torch.sigmoid, None, None),
    "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "leakyrelu": (F.leaky_relu, 0.01, None),
    "thresholdedrelu": (lambda x, alpha: torch.where(x >= alpha, x, 0), 1.0, None),
    "scaledtanh": (lambda x, alpha, beta: alpha * torch.tanh(beta * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1), 0.2, 0.5),
    "elu": (F.elu, 1.0, None),
    "softsign": (F.softsign, None, None),
    "softplus": (F.softplus, None, None),
}


def activations_of(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """The named functions, with the next of the given alphas and betas each."""
    alphas_left, betas_left = iter(alphas or ()), iter(betas or ())
    return [_activation(name, alphas_left, betas_left) for name in names]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    function, alpha, beta = _ACTIVATIONS[name.lower()]
    given = [next(alphas, alpha)] if alpha is not None else []
    given += [next(betas, beta)] if beta is not None else []
    return lambda x: function(x, *given)


def clipped(function: Activation, clip: float | None) -> Activation:
    """The function of its argument clipped to [-clip, clip]."""
    return function if clip is None else lambda x: function(x.clamp(-clip, clip))


def run_over_time(
    step: Step, gates: Tensor, lengths: Tensor | None, *states: Tensor
) -> tuple[Tensor, ...]:
    """Step over (time, batch, gates); past its length a sequence keeps its state, and y is 0."""
    ys = []
    for t, x in enumerate(gates.unbind(0)):
        after = step(x, *states)
        y = after[0]
        if lengths is not None:
            live = (t < lengths).unsqueeze(-1)
            after = tuple(torch.where(live, a, s) for a, s in zip(after, states, strict=True))
            y = y * live
        states = after
        ys.append(y)
    return torch.stack(ys) if ys else gates.new_empty(0, *states[0].shape), *states


def each_direction(
    run: Callable[..., Sequence[Tensor]],
    x: Tensor,
    lengths: Tensor | None,
    states: Sequence[Tensor],
    direction: str,
) -> list[Tensor]:
    """Concatenate run(d, x, *states) -> (y, *last states) over the directions d.

    y is (time, directions, batch, hidden), a state (directions, batch, hidden). A sequence of
    no steps ends in zeros, as in onnxruntime.
    """
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    results = []
    for d, back in enumerate(backwards):
        y, *last = run(d, reverse_time(x, lengths) if back else x, *[state[d] for state in states])
        if lengths is not None:
            last = [state * (lengths > 0).unsqueeze(-1) for state in last]
        results.append([reverse_time(y, lengths) if back else y, *last])
    ys, *lasts = zip(*results, strict=True)
    return [torch.stack(ys, 1), *[torch.stack(last) for last in lasts]]


def reverse_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each sequence of (time, batch, size) in time; its padding stays at the end."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    source = torch.where(t < lengths, lengths - 1 - t, t)
    return x.gather(0, source.unsqueeze(-1).expand_as(x))
