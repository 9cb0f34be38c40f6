"""The machine that measurements belong to, and the folder that keeps them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onward.measure.machine import cache_folder


@pytest.mark.skipif(sys.platform != "linux", reason="the paths of Linux")
def test_cache_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder("tuning") == Path("/home/ada/.cache/onward/tuning")
    pytest.importorskip("platformdirs")  # without it, as in a bare checkout, the folder is fixed
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert cache_folder("tuning") == Path("/fast/onward/tuning")
