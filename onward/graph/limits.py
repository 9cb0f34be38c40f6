"""ModelLimits: how large a model may be before it is refused; honest models stay far below.

options = SessionOptions(limits=ModelLimits(nodes=10_000))
load("model.onnx", limits=ModelLimits(allow_domains=frozenset({"my.domain"})))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from onward.errors import LimitExceeded
from onward.settings import check_fields, explain_frozen, explain_keywords, integer, list_of

_DEEPEST = 32  # protobuf itself stops at a nesting of about 33 graphs

KNOWN_DOMAINS = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.nchwc",  # what onnxruntime writes when it saves an optimised model
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
        "onward",
    }
)


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """How large a model may be. Each default is far above what honest models have.

    Attributes:
        file_bytes: of the model's own file; protobuf ends at the default too
        text_bytes: of a model that is written as text
        nodes: in the file, subgraphs and functions included
        nesting: graphs inside graphs
        expanded_nodes: once every call of a function is replaced by its body
        node_values: inputs or outputs of one node
        name_bytes: of one name
        elements: that one tensor or one shape declares
        folded_elements: of one result that depends only on constants
        folding_work: elements that constant folding computes in all
        allow_domains: domains of operators that are allowed in addition to the known ones
        allow_ep_context: nodes that hold another engine's compiled program
        allow_pickle: torch programs (.pt2), which torch may unpickle
        allow_data_by_path: onnxruntime opens external data itself, and maps it

    >>> ModelLimits(nodes=10_000).nodes
    10000
    """

    file_bytes: int = 1 << 31
    text_bytes: int = 1 << 28
    nodes: int = 1 << 18
    nesting: int = _DEEPEST
    expanded_nodes: int = 1 << 20
    node_values: int = 1 << 16
    name_bytes: int = 1 << 16
    elements: int = 1 << 40
    folded_elements: int = 1 << 29
    folding_work: int = 1 << 33
    allow_domains: frozenset[str] = frozenset()
    allow_ep_context: bool = False
    allow_pickle: bool = False
    allow_data_by_path: bool = False

    def __post_init__(self) -> None:
        counts = [each.name for each in fields(self) if not each.name.startswith("allow_")]
        check_fields(self, **dict.fromkeys(counts, integer(0)))
        domains = list_of(str, "a set of names", "{'my.domain'}")
        check_fields(self, nesting=integer(0, _DEEPEST), allow_domains=domains)
        object.__setattr__(self, "allow_domains", frozenset(self.allow_domains))


DEFAULT_LIMITS = ModelLimits()


def exceeded(limits: ModelLimits, name: str, value: int, what: str, where: str) -> LimitExceeded:
    """The error for an exceeded limit: which limit, by how much, where, and what to do."""
    return LimitExceeded(
        f"{where}: {_number(value)} {what}, more than the limit of {getattr(limits, name):,}\n"
        f"if you trust this model, raise ModelLimits.{name}"
    )


def _number(value: int) -> str:
    return f"{value:,}" if value < 1 << 63 else f"about 2^{value.bit_length() - 1}"


Operator = tuple[str, str]  # domain and name; the default domain is ""


def check_operators(
    operators: Iterable[tuple[Operator, str]],
    own: set[str],
    limits: ModelLimits,
    any_domain: bool = False,
) -> None:
    """Refuse operators of unknown domains, and other engines' compiled programs.

    `operators` are pairs of operator and first node; `own` are the domains of the functions.
    """
    known = KNOWN_DOMAINS | limits.allow_domains | own
    for (domain, name), where in operators:
        if name == "EPContext" and not limits.allow_ep_context:
            raise LimitExceeded(
                f"{where} holds another engine's compiled program, which cannot be checked\n"
                "if you trust this model, set ModelLimits.allow_ep_context"
            )
        if domain not in known and not any_domain:
            raise LimitExceeded(
                f"{where} is of the unknown domain {domain[:80]!r}\n"
                "register its custom operators, or name it in ModelLimits.allow_domains"
            )
