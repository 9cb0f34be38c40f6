"""onward providers: what this machine can run models on."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from onward.providers.choose import available
from onward.providers.ort.session import known

_WHAT = {
    "CPUExecutionProvider": "onnxruntime's own CPU kernels",
    "TorchExecutionProvider": "PyTorch, operator by operator (CPU or CUDA)",
    "InductorExecutionProvider": "PyTorch, the whole graph compiled (CPU or CUDA)",
    "ReferenceExecutionProvider": "ONNX's definitions in numpy: slow and right",
}


def providers() -> None:
    """List the providers of this machine, the preferred ones first, and those it lacks."""
    here = available()
    table = Table("provider", "here", "what it is")
    for name in [*here, *(name for name in known() if name not in here)]:
        table.add_row(name, "yes" if name in here else "-", _WHAT.get(name, "through onnxruntime"))
    Console().print(table)
