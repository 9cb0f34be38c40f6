"""enable_custom_autograd_support: accepted; a torch.autograd.Function always runs in PyTorch."""

from __future__ import annotations

from onward.training.ortmodule._logger import LOGGER


class _Enabler:
    state = True


custom_autograd_function_enabler = _Enabler()


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Nothing has to be enabled. Without it, the peer differentiated through such a function."""
    custom_autograd_function_enabler.state = to_enable
    if not to_enable:
        LOGGER.warning(
            "enable_custom_autograd_support(False) has no effect: "
            "the backward of a torch.autograd.Function is its own"
        )
