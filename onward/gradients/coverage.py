"""A list of operators with their gradient rule, or the reason that they have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from onward.gradients.rule import GradientTable, NoGradient

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview")  # all of their operators are in the table


@dataclass(frozen=True)
class Differentiable:
    """An operator and its entry in the table."""

    domain: str
    name: str
    kind: str  # "rule", "none" or "missing"
    why: str  # the rule's formula, or the reason that there is none


def differentiable(
    rules: GradientTable,
    domains: Sequence[str] = DOMAINS,
    others: Iterable[tuple[str, str]] = (),
) -> list[Differentiable]:
    """The operators of the newest opset, of the table and of `others`, sorted by domain and name.

    `others` are pairs of domain and name.
    """
    names = {key for domain in domains for key in _newest(domain)} | set(rules) | set(others)
    return [_entry(rules, domain, name) for domain, name in sorted(names)]


def _newest(domain: str) -> set[tuple[str, str]]:
    schemas = [each for each in onnx.defs.get_all_schemas() if each.domain == domain]
    return {(domain, schema.name) for schema in schemas if not schema.deprecated}


def _entry(rules: GradientTable, domain: str, name: str) -> Differentiable:
    rule = rules.find(domain, name, onnx.defs.onnx_opset_version())
    shown = domain or "ai.onnx"
    if rule is None:
        return Differentiable(shown, name, "missing", "")
    if isinstance(rule, NoGradient):
        return Differentiable(shown, name, "none", rule.reason)
    formula = (rule.__doc__ or "").strip().splitlines() or [""]
    return Differentiable(shown, name, "rule", formula[0].strip())
