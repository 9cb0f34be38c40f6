"""Which submodules run on captured graphs, which in PyTorch, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from torch import nn

from onward.pytorch.captured_module import CapturedModule
from onward.pytorch.explanation.explained_facts import (
    CAPTURED,
    IN_PYTORCH,
    NOT_CALLED,
    SubmoduleRow,
)

_NO_PROGRAM = "its tensors have no plain memory (a subclass of torch.Tensor)"


def find_parts(captured: CapturedModule) -> Iterator[CapturedModule]:
    """A module and all submodules that are captured separately."""
    yield captured
    for part in captured.parts:
        yield from find_parts(part)


def submodule_rows(captured: CapturedModule, nodes: Mapping[str, int]) -> list[SubmoduleRow]:
    """A row for each submodule; `nodes` counts the captured nodes by path."""
    parts = {part.path: part for part in find_parts(captured)}
    totals = Counter[str]()
    for path, count in nodes.items():
        totals.update(dict.fromkeys(_ancestors(path), count))
    rows = []
    for path, module in captured.module.named_modules():
        status, reason = _status(parts, path)
        rows.append(
            SubmoduleRow(
                path=path,
                kind=type(module).__name__,
                status=_of_container(module, path, parts) or status,
                reason=reason,
                nodes=totals[path],
                parameters=sum(each.numel() for each in module.parameters()),
            )
        )
    return rows


def _status(parts: Mapping[str, CapturedModule], path: str) -> tuple[str, str]:
    """Who runs a submodule: the nearest module around it that has programs or reasons decides."""
    nearest = next(each for each in _ancestors(path) if each in parts)
    part = parts[nearest]
    if part.reasons:
        reason = str(next(iter(part.reasons.values())))
        return IN_PYTORCH, reason if nearest == path else ""
    if part.programs:
        return CAPTURED, ""
    if nearest == "":
        return IN_PYTORCH, _NO_PROGRAM
    return NOT_CALLED, ""


def _of_container(module: nn.Module, path: str, parts: Mapping[str, CapturedModule]) -> str | None:
    """A list of modules is never called: it is captured if all of its modules are."""
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return None
    found = {_status(parts, f"{path}.{name}")[0] for name, _ in module.named_children()}
    return found.pop() if len(found) == 1 else None


def _ancestors(path: str) -> list[str]:
    """
    >>> _ancestors("layers.0.norm")
    ['layers.0.norm', 'layers.0', 'layers', '']
    """
    names = path.split(".") if path else []
    return [".".join(names[:count]) for count in range(len(names), -1, -1)]
