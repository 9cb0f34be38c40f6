"""R1, the short tier: 60 mutants; in `make conformance`, on each provider."""

from __future__ import annotations

import pytest

from conformance.reliability import mutated, mutators, seeds
from onward.providers.choose import available

HERE = [name for name in mutated.PROVIDERS if name == "default" or name in available()]


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize("provider", HERE)
def test_mutants_are_run_or_refused(provider: str) -> None:
    tally = mutated.try_all(provider, 60, seed=7, models=seeds.small(), progress=False)
    assert tally.tried == 60
    assert not tally.bad, tally.line()
    assert tally.outcomes["ran"] > 5 and tally.outcomes["InvalidModel"] > 5


def test_mutants_are_reproducible() -> None:
    models = [model.SerializeToString() for model in seeds.small()]
    first = [mutators.mutant(models, 3, n) for n in range(50)]
    assert first == [mutators.mutant(models, 3, n) for n in range(50)]
    assert len(set(first)) > 45


def test_the_seeds_are_of_most_families() -> None:
    operators = {node.op_type for model in seeds.small() for node in model.graph.node}
    assert len(seeds.small()) >= 40 and len(operators) >= 60


def test_crashes_hangs_and_other_errors_are_failures() -> None:
    tally = mutated.Tally("default")
    for number, outcome in enumerate(["ran", "InvalidModel", "crash", "hang", "foreign"]):
        tally.count(number, outcome, "why", 0.0)
    assert [entry["number"] for entry in tally.bad] == [2, 3, 4]
    assert "5 mutants, 3 failures" in tally.line()
