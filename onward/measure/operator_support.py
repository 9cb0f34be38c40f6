"""Which operators each provider runs: asked about an example of each, and remembered.

Of onnxruntime's own providers, its list of kernels says so too; operators of domains that ONNX does
not define are known from the providers' lists alone, and None is "nobody can say".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from onward.lazy import LazyModule
from onward.measure.machine import cache_folder, digest, keep, kept, versions
from onward.providers.choose import INDUCTOR, OWN_PROVIDERS, TORCH, choose
from onward.providers.operator_examples import example, newest_opsets
from onward.providers.options import SessionOptions
from onward.providers.ort.kernels import contrib_operators, kernel_types

torch_table = LazyModule("onward.providers.torch.table")  # it loads torch

Key = tuple[str, str]  # (domain, operator)
Answers = dict[str, bool | None]  # by "domain::operator"
Progress = Callable[[str], None]  # is told whom it is asking


@dataclass(frozen=True)
class Operator:
    """An operator of the newest opset, and who runs it."""

    domain: str  # "ai.onnx" for ONNX's own
    name: str
    since: int
    runs: dict[str, bool | None] = field(default_factory=dict)  # by provider


def operators(
    providers: Sequence[str], *, folder: Path | None = None, progress: Progress | None = None
) -> list[Operator]:
    """Every operator of the newest opsets, by domain and name, and which providers run it.

    Answers are kept on disk by versions, in `folder` or in the user's cache.
    """
    answers = {}
    for name in providers:
        if progress is not None:
            progress(name)
        answers[name] = _remembered(name, folder or cache_folder("operators"))
    return [
        Operator(
            domain or "ai.onnx",
            name,
            since,
            {provider: answers[provider].get(_word((domain, name))) for provider in providers},
        )
        for (domain, name), since in sorted(known_operators().items())
    ]


def known_operators() -> dict[Key, int]:
    """Every operator that ONNX or onnxruntime defines and has not withdrawn: its version.

    Of ai.onnx.ml those too that it has: scikit-learn's converter goes on writing them.
    """
    schemas = onnx.defs.get_all_schemas()
    defined = {(s.domain, s.name): int(s.since_version) for s in schemas if not s.deprecated}
    return contrib_operators() | _withdrawn("ai.onnx.ml") | defined


def _withdrawn(domain: str) -> dict[Key, int]:
    """Operators by their last version before they were withdrawn."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    last: dict[Key, int] = {}
    for schema in schemas:
        if not schema.deprecated:
            key = (domain, schema.name)
            last[key] = max(last.get(key, 0), int(schema.since_version))
    return last


def types_of(key: Key, provider: str) -> list[str]:
    """The types that a provider's kernel takes; empty where its list does not tell."""
    return [] if provider in OWN_PROVIDERS else kernel_types(provider).get(key, [])


def _word(key: Key) -> str:
    return "::".join(key)


def _remembered(provider: str, folder: Path) -> Answers:
    path = folder / f"{digest(provider, versions(), onnx.__version__, _our_state())}.json"
    record = kept(path)
    if record is not None:
        return record
    answers = {_word(key): _ask(key, provider) for key in known_operators()}
    keep(path, answers)
    return answers


def _our_state() -> list[int]:
    """Changes with our own sources, which decide too."""
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
    except Exception:  # a type that onnx-ir has no word for: nothing but lists can tell
        return False
    return bool(_provider(provider).supports(node, newest))


_DEFINED_ALONE = {"ReferenceExecutionProvider"}  # what ONNX does not define, it never runs
_made: dict[str, Any] = {}


def _provider(name: str) -> Any:
    if name not in _made:
        options = SessionOptions(disable_fallback=True)
        (engine,) = choose([name], None, options).engines(options)
        _made[name] = engine.provider
    return _made[name]
