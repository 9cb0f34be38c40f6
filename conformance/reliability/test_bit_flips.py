"""R6, the short tier."""

from __future__ import annotations

import pytest

from conformance.reliability import bit_flips
from onward.checkpoints import tensor_files


def test_every_damage_is_named_and_a_good_checkpoint_used() -> None:
    tally = bit_flips.damage_all(100, 40, seed=3)
    assert not tally.faults
    assert tally.kinds == {"flipped bits": 100, "cuts": 40, "sets of missing files": 15}
    assert "0 in 155: < 3/155" in tally.line()


def test_reader_without_checksums_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def update(self, data: object) -> None: ...
        def hexdigest(self) -> str:
            return "0" * 64

    class Hashes:
        sha256 = Blind

    monkeypatch.setattr(tensor_files, "hashlib", Hashes)
    assert bit_flips.damage_all(20, 0, seed=3).faults
