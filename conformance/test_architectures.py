"""onward.Module equals eager torch on the architectures of conformance/architectures/.

`make integration` compares those of SAMPLED, `scripts/test -m slow` all of them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers  # noqa: F401  # skipped where it is not installed

from conformance.architectures import compare, engines
from conformance.architectures.case import Case
from conformance.architectures.check import cells, markdown
from conformance.architectures.table import ARCHITECTURES, build

SAMPLED = (
    "bert", "gpt2", "resnet", "lstm_tagger", "vae", "actor_critic", "transformer_encoder",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and transformers warn about themselves


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SAMPLED else pytest.mark.slow) for n in ARCHITECTURES]
)
def test_module_equals_eager(name: str) -> None:
    row = compare.compare(name, "module", steps=5 if name in SAMPLED else 20)
    wrong = {group: found for group, found in row["differences"].items() if not found["near"]}
    assert not wrong
    assert not row["fell_back"]


def test_architectures_are_the_same_for_the_same_seed() -> None:
    one, other = build("actor_critic"), build("actor_critic")
    pairs = zip(one.module.parameters(), other.module.parameters())
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(one.args, other.args))


def test_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(case: Case) -> engines.Running:
        case.module.critic.weight.register_hook(lambda gradient: gradient * 1.001)
        return engines.eager(case)

    monkeypatch.setitem(engines.ENGINES, "wrong", wrong)
    row = compare.compare("actor_critic", "wrong", steps=2)
    assert not row["equal"]
    assert row["differences"]["gradients"]["tensor"] == "critic.weight"
    assert row["differences"]["gradients"]["error"] == pytest.approx(1e-3, rel=0.1)
    assert row["differences"]["outputs"]["near"]
    assert "(critic.weight)" in cells(row)[1]
    assert "`actor_critic` ✗" in markdown([row])


@pytest.mark.integration
def test_engine_that_draws_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def still(case: Case) -> engines.Running:
        return engines.eager(Case(case.module.eval(), case.args, case.kwargs, case.loss))

    monkeypatch.setitem(engines.ENGINES, "still", still)
    assert not compare.compare("transformer_encoder_dropout", "still")["equal"]
    assert compare.compare("transformer_encoder_dropout", "eager")["equal"]
