"""Names of providers: full, short, and suggestions for unknown ones."""

from __future__ import annotations

from typing import Any

import pytest

from onward.errors import OptionError
from onward.providers.provider_names import find_name, short_name

KNOWN = ["CPUExecutionProvider", "CUDAExecutionProvider", "TorchExecutionProvider"]
HERE = ["CPUExecutionProvider", "TorchExecutionProvider"]


@pytest.mark.parametrize("text", ["torch", "Torch", "TORCH", "TorchExecutionProvider"])
def test_short_and_full_names_in_any_case(text: str) -> None:
    assert find_name(text, KNOWN, HERE) == "TorchExecutionProvider"
    assert short_name(find_name(text, KNOWN, HERE)) == "torch"


@pytest.mark.parametrize("text", ["ort", "onnxruntime", "ONNXRuntime"])
def test_onnxruntime_means_the_cpu_provider(text: str) -> None:
    assert find_name(text, KNOWN, HERE) == "CPUExecutionProvider"


def test_unknown_provider_lists_available_ones() -> None:
    with pytest.raises(OptionError) as error:
        find_name("tpu", KNOWN, HERE)
    assert str(error.value) == (
        "no provider 'tpu'\nthis machine has cpu, torch; did you mean 'cpu'?"
    )
    with pytest.raises(OptionError, match=r"no provider 'zzz'\nthis machine has cpu, torch$"):
        find_name("zzz", KNOWN, HERE)


@pytest.mark.parametrize("item", [None, 3, ("cpu",)])
def test_invalid_name_is_refused(item: Any) -> None:
    with pytest.raises(OptionError, match="a provider must be a name such as 'cpu', or"):
        find_name(item, KNOWN, HERE)
