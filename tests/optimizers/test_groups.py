"""Groups: every parameter has exactly one optimizer, or is frozen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import OptionError
from onward.optimizers.adam import AdamW
from onward.optimizers.groups import Group, resolve
from onward.optimizers.muon import Muon
from onward.optimizers.sgd import SGD

SHAPES = {
    "encoder.weight": (4, 3),
    "encoder.bias": (4,),
    "decoder.weight": (3, 4),
    "decoder.bias": (3,),
    "head[0].weight": (2, 3),
}


def test_without_groups_all_have_one_optimizer() -> None:
    assert resolve(AdamW(), [], SHAPES) == [(AdamW(), list(SHAPES))]


def test_patterns_names_and_predicates() -> None:
    groups = [
        Group(parameters=["encoder.*"], frozen=True),
        Group(parameters="head[0].weight", lr=0.5),  # a name, though it looks like a pattern
        Group(parameters=lambda name, shape: len(shape) < 2, weight_decay=0.0, lr=0.1),
    ]
    assert resolve(AdamW(lr=0.01), groups, SHAPES) == [
        (None, ["encoder.weight", "encoder.bias"]),
        (AdamW(lr=0.5), ["head[0].weight"]),
        (AdamW(lr=0.1, weight_decay=0.0), ["decoder.bias"]),
        (AdamW(lr=0.01), ["decoder.weight"]),
    ]


def test_the_first_group_that_matches_wins() -> None:
    groups = [Group(parameters="*.bias", lr=0.1), Group(parameters="encoder.*", lr=0.2)]
    found = resolve(SGD(), groups, SHAPES)
    assert found[:2] == [
        (SGD(lr=0.1), ["encoder.bias", "decoder.bias"]),
        (SGD(lr=0.2), ["encoder.weight"]),
    ]


def test_matrices_to_muon_and_the_rest_to_adamw() -> None:
    matrices = Group(parameters=lambda name, shape: len(shape) == 2, optimizer=Muon(), lr=0.02)
    muon, adamw = resolve(AdamW(), [matrices], SHAPES)
    assert muon == (Muon(lr=0.02), ["encoder.weight", "decoder.weight", "head[0].weight"])
    assert adamw == (AdamW(), ["encoder.bias", "decoder.bias"])


def test_a_shape_that_the_optimizer_refuses_is_named() -> None:
    with pytest.raises(OptionError, match=r"parameter 'encoder\.bias': Muon updates matrices, not"):
        resolve(Muon(), [], SHAPES)


def test_a_predicate_may_match_nothing() -> None:
    nothing = Group(parameters=lambda name, shape: False, lr=0.1)
    assert resolve(SGD(), [nothing], SHAPES) == [(SGD(), list(SHAPES))]


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    law = r"no parameter matches 'encoder\.wieght' of Group\(.*\)\ndid you mean 'encoder\.w"
    with pytest.raises(OptionError, match=law):
        resolve(SGD(), [Group(parameters="encoder.wieght", lr=0.1)], SHAPES)
    law = r"no parameter matches 'zzz\*' of .*\nthere are 'encoder\.weight', 'encoder\.bias', 'dec"
    with pytest.raises(OptionError, match=law):
        resolve(SGD(), [Group(parameters=["*.bias", "zzz*"], lr=0.1)], SHAPES)
    with pytest.raises(OptionError, match=r"of .*\nthere are none"):
        resolve(SGD(), [Group(parameters="*", lr=0.1)], {})


def test_a_group_whose_parameters_are_all_taken_is_refused() -> None:
    groups = [Group(parameters="*", lr=0.1), Group(parameters="*.bias", lr=0.2)]
    law = (
        r"every parameter of Group\(parameters='\*\.bias', lr=0\.2\) is in a group before it\n"
        r"put it first, or leave it out: the first group that matches wins"
    )
    with pytest.raises(OptionError, match=law):
        resolve(SGD(), groups, SHAPES)


def test_an_unknown_setting_is_refused() -> None:
    law = r"SGD has no setting 'momentun' \(Group\(.*\)\)\ndid you mean 'momentum'\?"
    with pytest.raises(OptionError, match=law):
        resolve(SGD(), [Group(parameters="*.bias", momentun=0.9)], SHAPES)
    law = r"SGD has no setting 'zzz' .*\nit has 'lr', 'momentum', 'damp"
    with pytest.raises(OptionError, match=law):
        resolve(SGD(), [Group(parameters="*.bias", zzz=0.9)], SHAPES)


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(OptionError, match=r"SGD\.lr must be a number, at least 0, not -1"):
        resolve(SGD(), [Group(parameters="*.bias", lr=-1)], SHAPES)


def test_frozen_with_settings_is_refused() -> None:
    law = r"Group\(.*frozen=True\) is frozen: no optimizer updates it\nleave frozen, or the settin"
    with pytest.raises(OptionError, match=law):
        Group(parameters="*", frozen=True, lr=0.1)


@pytest.mark.parametrize("parameters", [[], 3, [1], None])
def test_parameters_that_are_not_names_are_refused(parameters: Any) -> None:
    law = (
        r"the parameters of a Group must be names, patterns or a predicate, not .*\n"
        r"give at least one name, such as '\*\.bias'"
    )
    with pytest.raises(OptionError, match=law):
        Group(parameters=parameters)


@pytest.mark.parametrize("given", [3, "adam", [], {"lr": 0.1}, None])
def test_an_object_that_is_not_an_optimizer_is_refused(given: Any) -> None:
    law = (
        r"the optimizer must be one of onward\.optimizers, not .*\n"
        r"for example: onward\.optimizers\.A"
    )
    with pytest.raises(OptionError, match=law):
        resolve(given, [], SHAPES)


def test_an_optimizer_class_instead_of_an_instance_is_refused() -> None:
    law = (
        r"the optimizer must be one of onward\.optimizers, not <class .*AdamW'>\n"
        r"call it: AdamW\(lr="
    )
    with pytest.raises(OptionError, match=law):
        resolve(AdamW, [], SHAPES)  # type: ignore[arg-type]


def test_the_arguments_of_a_group_are_checked() -> None:
    with pytest.raises(
        OptionError, match=r"Group\.optimizer must be one of onward\.optimizers, not 3\n"
    ):
        Group(parameters="*", optimizer=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"Group\.frozen must be True or False, not 'yes'$"):
        Group(parameters="*", frozen="yes")  # type: ignore[arg-type]
    law = r"groups must be optimizers\.Group, not 'a'\nfor example: \[Group\(parameters="
    with pytest.raises(OptionError, match=law):
        resolve(SGD(), "a", SHAPES)  # type: ignore[arg-type]


def test_a_group_is_frozen_and_has_a_repr() -> None:
    group = Group(parameters="*.bias", optimizer=SGD(), lr=0.1)
    assert repr(group) == f"Group(parameters='*.bias', lr=0.1, optimizer={SGD()!r})"
    assert group == Group(parameters="*.bias", optimizer=SGD(), lr=0.1)
    with pytest.raises(AttributeError):
        group.frozen = True  # type: ignore[misc]


NAMES = st.text("ab.*[]?", min_size=1, max_size=4)


@given(
    names=st.lists(NAMES, unique=True, min_size=1),
    patterns=st.lists(
        st.tuples(st.lists(NAMES, min_size=1, max_size=2), st.booleans()), max_size=4
    ),
)
def test_every_parameter_is_in_exactly_one_group(
    names: list[str], patterns: list[tuple[list[str], bool]]
) -> None:
    groups = [
        Group(parameters=wanted, frozen=True) if frozen else Group(parameters=wanted, lr=0.5)
        for wanted, frozen in patterns
    ]
    try:
        found = resolve(SGD(), groups, dict.fromkeys(names, (2,)))
    except OptionError as error:
        assert "no parameter matches" in str(error) or "is in a group before it" in str(error)
        return
    assert sorted(name for _, listed in found for name in listed) == sorted(names)
    assert all(listed for _, listed in found)
