"""Reading `.pt2` files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onward.errors import ProviderMissing
from onward.providers.torch.exported_programs import read_program


def test_missing_onnxscript_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    message = (
        r"m\.pt2: onnxscript, .* is not installed\ninstall it with: pip install onward\[torch\]"
    )
    with pytest.raises(ProviderMissing, match=message):
        read_program(tmp_path / "m.pt2")
