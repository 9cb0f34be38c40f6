"""onward providers: list the providers of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onward.cli import arguments
from onward.cli.console import make_console, make_table, print_json, print_table
from onward.providers.choose import OWN_PROVIDERS, all_provider_names, available, install_hint
from onward.providers.provider_names import short_name

_DESCRIPTIONS = {
    "CPUExecutionProvider": "onnxruntime's own CPU kernels",
    "CUDAExecutionProvider": "NVIDIA GPUs, through onnxruntime",
    "TensorrtExecutionProvider": "NVIDIA's TensorRT, through onnxruntime",
    "CoreMLExecutionProvider": "Apple's CoreML, through onnxruntime",
    "DmlExecutionProvider": "Windows' DirectML, through onnxruntime",
    "OpenVINOExecutionProvider": "Intel's OpenVINO, the graph compiled (f32 unless you allow less)",
    "TorchExecutionProvider": "PyTorch, operator by operator (CPU or CUDA)",
    "InductorExecutionProvider": "PyTorch, the whole graph compiled (CPU or CUDA)",
    "ReferenceExecutionProvider": "ONNX's reference implementation in numpy: slow and exact",
}
_PACKAGES = {
    "TorchExecutionProvider": ("torch",),
    "InductorExecutionProvider": ("torch",),
    "OpenVINOExecutionProvider": ("openvino",),
    "ReferenceExecutionProvider": ("onnx",),
}
_BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-qnn")
_NEEDS = {  # builds of onnxruntime that have the provider; each replaces the stock one
    "CUDAExecutionProvider": "an NVIDIA GPU and: pip install onnxruntime-gpu",
    "TensorrtExecutionProvider": "an NVIDIA GPU, TensorRT and: pip install onnxruntime-gpu",
    "DmlExecutionProvider": "Windows and: pip install onnxruntime-directml",
    "CoreMLExecutionProvider": "macOS, where the stock onnxruntime has it",
    "QNNExecutionProvider": "a Qualcomm NPU and: pip install onnxruntime-qnn",
}
_OTHER_BUILD = "an onnxruntime built with it"


def providers(as_json: arguments.Json = False) -> None:
    """List the providers of this machine.

    The preferred ones come first; then those that are missing, with what they need.

    \b
    onward providers
    onward providers --json
    """
    here = available()
    rows = [_facts(name, name in here) for name in dict.fromkeys([*here, *all_provider_names()])]
    if as_json:
        print_json(rows)
        return
    table = make_table("provider", "short name", "version", "description")
    for row in (row for row in rows if row["available"]):
        table.add_row(row["name"], row["short_name"], row["version"], row["description"])
    console = make_console()
    console.print(table)
    missing = make_table("provider", "needs")
    lacking = [row for row in rows if not row["available"]]
    for row in (row for row in lacking if row["needs"] != _OTHER_BUILD):
        missing.add_row(row["name"], row["needs"])
    rest = [row["name"] for row in lacking if row["needs"] == _OTHER_BUILD]
    missing.add_row("\n".join(rest), _OTHER_BUILD)
    print_table(console, missing, "not on this machine")


def _facts(name: str, here: bool) -> dict[str, Any]:
    return {
        "name": name,
        "short_name": short_name(name),
        "available": here,
        "version": _version(_PACKAGES.get(name, _BUILDS)) if here else None,
        "description": _DESCRIPTIONS.get(name, "through onnxruntime"),
        "needs": None if here else _requirement(name),
    }


def _requirement(name: str) -> str:
    if name in OWN_PROVIDERS:
        return install_hint(name)
    return _NEEDS.get(name, _OTHER_BUILD)


def _version(packages: Sequence[str]) -> str:
    """The first installed one of these packages, with its version."""
    for package in packages:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return packages[0]
