"""R9b, the short tier: a short and a long cut of the link between two machines."""

from __future__ import annotations

import pytest

from conformance.reliability import cut_links

pytest.importorskip("torch")


@pytest.mark.slow  # both machines start processes three times
def test_a_run_recovers_when_its_network_was_cut() -> None:
    if not cut_links.supported():
        pytest.skip("this machine allows no network namespaces without root")
    tally = cut_links.cut_links(2)
    assert not tally.fault
    assert len(tally.recovered) == 2 and tally.long == 1 and tally.steps == 3 * cut_links.STEPS
    assert "each counted once" in tally.line()
