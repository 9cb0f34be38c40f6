"""TF32 is off inside of full_float32, and as it was after it."""

from __future__ import annotations

import pytest
import torch

from onward.providers.torch.full_float32 import full_float32, may_round


def test_tf32_is_off_inside_and_as_it_was_after_it() -> None:
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    with pytest.raises(KeyError), full_float32():
        assert [switch.allow_tf32 for switch in switches] == [False, False]
        raise KeyError
    assert [switch.allow_tf32 for switch in switches] == before


def test_only_a_gpu_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert may_round({}) and may_round({"device": "cuda:1"})
    assert not may_round({"device": "cpu"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not may_round({})
