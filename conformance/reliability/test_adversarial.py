"""R2, whole: it is quick enough for every run of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.reliability.adversarial import CASES, Outcome

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.integration
def test_every_model_of_the_corpus_is_refused() -> None:
    command = [sys.executable, "-m", "conformance.reliability.adversarial"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"R2: {len(CASES)}/{len(CASES)} refused" in done.stdout


def test_corpus_has_the_documented_size() -> None:
    assert len(CASES) >= 60


def test_model_that_opens_or_raises_another_error_is_a_fault() -> None:
    name = "an operator of an unknown domain"
    kinds = ("LimitExceeded", "UnsafeModel", "ModelError", "OnwardError")
    words = "unknown domain 'evil.domain'"
    assert not Outcome(name, "LimitExceeded", words, kinds, 0.1, 90).fault()
    assert "not refused" in Outcome(name, "", "it opened", (), 0.1, 90).fault()
    assert "refused as" in Outcome(name, "LimitExceeded", "other words", kinds, 0.1, 90).fault()
    assert "refused as" in Outcome(name, "FeedError", words, ("FeedError",), 0.1, 90).fault()
    assert "took 1.50 s" in Outcome(name, "LimitExceeded", words, kinds, 1.5, 90).fault()
    assert "took 600 MiB" in Outcome(name, "LimitExceeded", words, kinds, 0.1, 600).fault()
