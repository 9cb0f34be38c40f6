"""Who would run which node of a model."""

from __future__ import annotations

import json

import onnx
import onnx_ir as ir
import pytest

import onward
from onward.errors import InvalidModel
from onward.measure import node_support
from onward.measure.node_support import find_support, provider_facts
from tests.models import mlp, needs, sandwich

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"


def test_onnxruntime_gets_all_nodes_of_a_model_that_it_opens() -> None:
    found = find_support(mlp())
    assert found.takes[CPU] == 3 and found.shares == {CPU: 3}
    assert not any(place.why for place in found.division)


def test_refused_nodes_go_to_the_next_provider() -> None:
    pytest.importorskip("torch")
    found = find_support(sandwich())
    assert found.refuses[CPU] == {"Pow": 1} and found.shares == {CPU: 2, TORCH: 1}
    (moved,) = (place for place in found.division if place.why)
    assert moved.operator == "Pow" and moved.why == f"{CPU} refuses it"


def test_the_listed_providers_come_first() -> None:
    assert find_support(mlp(), [TORCH]).shares == {TORCH: 3}


def test_the_division_matches_the_session() -> None:
    session = onward.InferenceSession(sandwich())
    assert set(session.get_providers()) == set(find_support(sandwich()).shares)


def test_defects_of_onnxruntime_are_explained() -> None:
    pytest.importorskip("torch")
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[1,8,1] x) => (float[1,8,2] y) { y = DFT(x) }""")
    (place,) = find_support(onward.load(model)).division
    assert place.provider == TORCH and place.why.startswith("onnxruntime gets it wrong: summed")


def test_an_unsupported_node_has_no_provider() -> None:
    model = onward.load(needs("Magic", domain="nobody"), any_domain=True)
    (place,) = find_support(model).division
    assert place.provider is None and place.why.startswith("none of ")
    facts = provider_facts(model, None, [])
    assert facts is not None and facts["shares"] == {"unsupported": 1}


def test_the_model_is_not_changed() -> None:
    model = mlp()
    before = onnx.printer.to_text(ir.to_proto(model))
    find_support(model)
    assert onnx.printer.to_text(ir.to_proto(model)) == before


def test_a_model_that_cannot_be_prepared_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: object) -> None:
        raise IndexError("oh")

    monkeypatch.setattr(node_support, "PREPARE", broken)
    with pytest.raises(InvalidModel, match="could not be prepared: IndexError: oh"):
        find_support(mlp())


def test_facts_of_providers_are_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    facts = provider_facts(mlp(), [TORCH], warnings)
    assert facts is not None and json.loads(json.dumps(facts)) == facts
    assert facts["shares"] == {TORCH: 3} and not warnings

    def broken(*arguments: object) -> None:
        raise InvalidModel("oh\nno")

    monkeypatch.setattr(node_support, "find_support", broken)
    assert provider_facts(mlp(), None, warnings) is None and warnings == ["oh; no"]
