"""Devices and versions of torch in onnxruntime.training's spellings."""

from __future__ import annotations

from typing import Any

import torch

from onward.errors import OptionTypeError


def get_device_index(device: str | int | torch.device) -> int:
    """The number of a device; 0 if it has none.

    >>> get_device_index("cuda:1"), get_device_index("cpu")
    (1, 0)
    """
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


def get_device_str(device: str | int | torch.device) -> str:
    """A device as type:number.

    >>> get_device_str("cpu"), get_device_str(1)
    ('cpu:0', 'cuda:1')
    """
    if isinstance(device, int):
        return f"cuda:{device}"
    if not isinstance(device, (str, torch.device)):
        raise OptionTypeError(
            f"a device must be a name, a number or a torch.device, not {device!r}\n"
            'such as "cpu" or "cuda:0"'
        )
    found = torch.device(device)
    current = torch.cuda.current_device() if found.type == "cuda" else 0
    return f"{found.type}:{current if found.index is None else found.index}"


def get_runtime_pytorch_version() -> Any:
    """torch's version, to compare with others."""
    return torch.torch_version.TorchVersion(torch.__version__.split("+")[0])


def are_deterministic_algorithms_enabled() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def use_deterministic_algorithms(enabled: bool) -> None:
    torch.use_deterministic_algorithms(enabled)
