"""Explanation: how a module is captured and run; as text, as JSON and as a page."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onward.graph.paths import writing
from onward.pytorch.explanation.explained_facts import (
    CAPTURED,
    IN_PYTORCH,
    ProgramFacts,
    SubmoduleRow,
    TensorBytes,
)
from onward.pytorch.explanation.explanation_page import render_page
from onward.pytorch.explanation.explanation_text import render_text


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a module runs for an example call; `print` it, or `save` it as an HTML page."""

    module: str  # the name of its class
    training: bool
    submodules: tuple[SubmoduleRow, ...]
    programs: tuple[ProgramFacts, ...]
    tensors: tuple[TensorBytes, ...]  # parameters, gradients, buffers, saved values

    @property
    def fallbacks(self) -> dict[str, str]:
        """The submodules that PyTorch runs, and why; "" is the module itself."""
        rows = (row for row in self.submodules if row.status == IN_PYTORCH and row.reason)
        return {row.path: row.reason for row in rows}

    @property
    def headline(self) -> str:
        """What is captured, in one sentence."""
        mode = "training" if self.training else "evaluation"
        if not self.fallbacks:
            return f"{self.module} is captured whole, in {mode} mode."
        if not self.programs:
            return f"{self.module} runs in PyTorch: nothing is captured."
        count = sum(row.status == CAPTURED for row in self.submodules[1:])
        return (
            f"{self.module} runs in PyTorch; {count} of its {len(self.submodules) - 1} submodules "
            f"are captured, in {mode} mode."
        )

    def bytes_of(self, kind: str) -> int:
        """The bytes of all parameters, gradients, buffers or saved values (`kind` "saved")."""
        return sum(each.bytes for each in self.tensors if each.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """All facts as plain numbers, texts, lists and dicts."""
        kinds = ("parameter", "gradient", "buffer", "saved")
        return {
            "headline": self.headline,
            "bytes": {kind: self.bytes_of(kind) for kind in kinds},
            "fallbacks": self.fallbacks,
            **asdict(self),
        }

    def html(self) -> str:
        """A page with the tree of submodules and a map of saved memory; it needs no network."""
        return render_page(self.headline, self.submodules, self.programs, self.tensors)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        with writing(Path(path)):
            Path(path).write_text(self.html(), encoding="utf-8")

    def __str__(self) -> str:
        return render_text(self.headline, self.submodules, self.programs, self.tensors)
