"""Which operators each provider runs: tested on an example of each, and cached.

For onnxruntime's providers, its list of kernels is used, too. Operators of domains that ONNX does
not define are known only from the providers' lists; None means unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from onward.lazy import LazyModule
from onward.measure.machine import cache_folder, digest, read_record, versions, write_record
from onward.providers.choose import INDUCTOR, OWN_PROVIDERS, TORCH, choose
from onward.providers.operator_examples import example, newest_opsets
from onward.providers.options import SessionOptions
from onward.providers.ort.kernels import contrib_operators, kernel_types

torch_table = LazyModule("onward.providers.torch.table")  # it loads torch

Key = tuple[str, str]  # (domain, operator)
Answers = dict[str, bool | None]  # by "domain::operator"
Progress = Callable[[str], None]  # gets the provider that is asked next


@dataclass(frozen=True)
class Operator:
    """An operator of the newest opset, and the providers that run it."""

    domain: str  # "ai.onnx" for ONNX's own
    name: str
    since: int
    runs: dict[str, bool | None] = field(default_factory=dict)  # by provider


def operators(
    providers: Sequence[str], *, folder: Path | None = None, progress: Progress | None = None
) -> list[Operator]:
    """Every operator of the newest opsets, by domain and name, and which providers run it.

    Answers are cached on disk by versions, in `folder` or in the user's cache.
    """
    answers = {}
    for name in providers:
        if progress is not None:
            progress(name)
        answers[name] = _cached_answers(name, folder or cache_folder("operators"))
    return [
        Operator(
            domain or "ai.onnx",
            name,
            since,
            {provider: answers[provider].get(_key_text((domain, name))) for provider in providers},
        )
        for (domain, name), since in sorted(known_operators().items())
    ]


def known_operators() -> dict[Key, int]:
    """The version of every operator that ONNX or onnxruntime defines and has not deprecated.

    Deprecated ones of ai.onnx.ml are included: scikit-learn's converter still writes them.
    """
    schemas = onnx.defs.get_all_schemas()
    defined = {(s.domain, s.name): int(s.since_version) for s in schemas if not s.deprecated}
    return contrib_operators() | _deprecated("ai.onnx.ml") | defined


def _deprecated(domain: str) -> dict[Key, int]:
    """The last version of each operator before it was deprecated."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    last: dict[Key, int] = {}
    for schema in schemas:
        if not schema.deprecated:
            key = (domain, schema.name)
            last[key] = max(last.get(key, 0), int(schema.since_version))
    return last


def types_of(key: Key, provider: str) -> list[str]:
    """The types that a provider's kernel takes; empty if its list does not have them."""
    return [] if provider in OWN_PROVIDERS else kernel_types(provider).get(key, [])


def _key_text(key: Key) -> str:
    return "::".join(key)


def _cached_answers(provider: str, folder: Path) -> Answers:
    path = folder / f"{digest(provider, versions(), onnx.__version__, _source_state())}.json"
    record = read_record(path)
    if record is not None:
        return record
    answers = {_key_text(key): _ask(key, provider) for key in known_operators()}
    write_record(path, answers)
    return answers


def _source_state() -> list[int]:
    """Changes when our own sources change, which the answers depend on."""
    files = [path.stat() for path in Path(__file__).parents[1].joinpath("providers").rglob("*.py")]
    return [len(files), max(file.st_mtime_ns for file in files)]


def _ask(key: Key, provider: str) -> bool | None:
    domain, name = key
    if provider not in OWN_PROVIDERS and key in kernel_types(provider):
        return True
    newest = newest_opsets()
    if domain not in newest:
        if provider in (TORCH, INDUCTOR):
            return key in torch_table.KERNELS
        return None if provider in OWN_PROVIDERS and provider not in _DEFINED_ALONE else False
    try:
        node = example(domain, name)
    except Exception:  # a type that onnx-ir does not have: only lists can say
        return False
    return bool(_provider(provider).supports(node, newest))


_DEFINED_ALONE = {"ReferenceExecutionProvider"}  # it runs only what ONNX defines
_made: dict[str, Any] = {}


def _provider(name: str) -> Any:
    if name not in _made:
        options = SessionOptions(disable_fallback=True)
        (engine,) = choose([name], None, options).engines(options)
        _made[name] = engine.provider
    return _made[name]
