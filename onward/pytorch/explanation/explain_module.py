"""explain: what of a module is captured, what falls back and why, and what it costs.

print(explain(module, x))
explain(module, x).save("report.html")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from onward.errors import OptionTypeError
from onward.pytorch.captured_module import CapturedModule
from onward.pytorch.explanation.explained_facts import ProgramFacts, TensorBytes
from onward.pytorch.explanation.kept_state import copy_call, keep_state
from onward.pytorch.explanation.module_explanation import Explanation
from onward.pytorch.explanation.node_origins import NodeOrigins
from onward.pytorch.explanation.program_report import describe_program
from onward.pytorch.explanation.saved_tensors import saved_tensors
from onward.pytorch.explanation.submodule_tree import find_parts, submodule_rows
from onward.pytorch.module import Module
from onward.pytorch.module_options import ModuleOptions


def explain(module: nn.Module, *inputs: Any, **kwargs: Any) -> Explanation:
    """Capture a module for an example call, and say how it runs.

    Takes a module, or one that `onward.Module` wraps (its options are used), and the arguments of a
    call. The module is called once; its buffers and torch's random numbers are restored, and no
    gradient is computed.

    >>> found = explain(nn.Linear(3, 1), torch.ones(2, 3))
    >>> found.headline, found.fallbacks
    ('Linear is captured whole, in training mode.', {})
    """
    if not isinstance(module, nn.Module):
        raise OptionTypeError(
            f"explain takes a torch.nn.Module, not {type(module).__name__}\n"
            "give a module and the arguments of a call: explain(module, x)"
        )
    options = ModuleOptions()
    if isinstance(module, Module):
        options = module.options
        module = module.module
    options = replace(options, fallback="quiet", save_onnx=None)
    captured = CapturedModule(module, options)
    args, named = copy_call(inputs, kwargs)
    with keep_state(module):
        captured(*args, **named)
    return _explanation(captured)


def _explanation(captured: CapturedModule) -> Explanation:
    module = captured.module
    nodes: Counter[str] = Counter()
    programs: list[ProgramFacts] = []
    saved: list[TensorBytes] = []
    reached: set[int] = set()  # parameters by identity: a tied one has several names
    traced: set[int] = set()
    for part in find_parts(captured):
        parameters = dict(part.module.named_parameters(remove_duplicate=False))
        for program in (each for group in part.groups.values() for each in group):
            origins = NodeOrigins(program, part.path)
            nodes.update(origins.of_node(node) for node in program.capture.model.graph)
            programs.append(describe_program(program, part.path, origins, parameters))
            saved += saved_tensors(program, origins)
            for name, of in program.capture.tensors.items():
                if of in parameters and name in program.wrt:
                    traced.add(id(parameters[of]))
                if of in parameters and name in program.joint.gradients:
                    reached.add(id(parameters[of]))
    return Explanation(
        module=type(module).__name__,
        training=module.training,
        submodules=tuple(submodule_rows(captured, nodes)),
        programs=tuple(programs),
        tensors=(
            *_tensors(dict(module.named_parameters()), "parameter"),
            *_tensors(_with_gradients(module, traced - reached), "gradient"),
            *_tensors(dict(module.named_buffers()), "buffer"),
            *sorted(saved, key=lambda each: -each.bytes),
        ),
    )


def _with_gradients(module: nn.Module, without: set[int]) -> dict[str, torch.Tensor]:
    """The parameters that get a gradient; for what PyTorch runs, those that require one."""
    if not torch.is_grad_enabled():
        return {}
    found = module.named_parameters()
    return {name: p for name, p in found if p.requires_grad and id(p) not in without}


def _tensors(tensors: Mapping[str, torch.Tensor], kind: str) -> Sequence[TensorBytes]:
    return [
        TensorBytes(
            name=name,
            kind=kind,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            bytes=tensor.numel() * tensor.element_size(),
            module=name.rpartition(".")[0],
        )
        for name, tensor in tensors.items()
    ]
