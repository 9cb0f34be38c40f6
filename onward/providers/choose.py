"""Choose the providers of a session: check names, fill in defaults, create engines when needed."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onward.errors import OptionError, ProviderMissing
from onward.lazy import LazyModule
from onward.message_text import suggest_names
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.providers.provider_names import AUTO, find_name

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.providers import reference
    from onward.providers.openvino import provider as openvino_provider
    from onward.providers.ort import provider as ort_provider
    from onward.providers.provider import Provider
    from onward.providers.torch import inductor as torch_compile
    from onward.providers.torch import kernel_names as torch_operators
    from onward.providers.torch import provider as torch_provider
else:  # each engine is imported when a node needs it
    reference = LazyModule("onward.providers.reference")
    openvino_provider = LazyModule("onward.providers.openvino.provider")
    ort_provider = LazyModule("onward.providers.ort.provider")
    torch_compile = LazyModule("onward.providers.torch.inductor")
    torch_operators = LazyModule("onward.providers.torch.kernel_names")
    torch_provider = LazyModule("onward.providers.torch.provider")

TORCH, INDUCTOR = "TorchExecutionProvider", "InductorExecutionProvider"
REFERENCE = "ReferenceExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
# some builds of onnxruntime have their own OpenVINO provider, which then has the name
OWN_PROVIDERS = (
    *((OPENVINO,) if OPENVINO not in ort.available() else ()),
    TORCH,
    INDUCTOR,
    REFERENCE,
)
FALLBACKS = (
    "CPUExecutionProvider",
    TORCH,
    REFERENCE,
)  # for nodes that the listed providers cannot run

_COMPILERS = ("c++", "g++", "clang++", "cl")

Named = tuple[str, Mapping[str, Any]]  # a provider's name and its options
Asked = str | Sequence[str | tuple[str, Mapping[str, Any]]] | None  # a str: only "auto"


@dataclass(frozen=True)
class DeferredProvider:
    """One provider, or several of onnxruntime's in one session; created when first used."""

    names: tuple[str, ...]
    make: Callable[[], Provider]
    may_have: Callable[[str, str], bool] = lambda domain, operator: (
        True
    )  # decided without an import

    @property
    def is_ort(self) -> bool:
        return self.names[0] not in OWN_PROVIDERS

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether it runs a node; its package is imported only if `may_have` is true."""
        return self.may_have(node.domain, node.op_type) and self.provider.supports(node, opsets)

    @cached_property
    def provider(self) -> Provider:
        return self.make()


@dataclass(frozen=True)
class ProviderChoice:
    """The providers of a session, the preferred ones first."""

    listed: tuple[Named, ...]  # given by the user, or the defaults of this machine
    fallback: tuple[Named, ...]  # for nodes that those cannot run
    named: bool  # whether the user gave any
    failed: frozenset[str] = frozenset()  # operators that failed in a run of onnxruntime

    def with_reference_fallback(self) -> ProviderChoice:
        """onnxruntime, and ONNX's reference for operators that failed there; no other engine."""
        kept = (*ort.available(), REFERENCE)
        listed = tuple(pair for pair in self.listed if pair[0] in kept)
        return replace(self, listed=listed, fallback=())

    @property
    def may_move(self) -> bool:
        """Whether nodes with a known defect in onnxruntime may run in torch."""
        return not self.named and any(name == TORCH for name, _ in self.listed)

    @property
    def leading_ort(self) -> tuple[Named, ...]:
        """The onnxruntime providers at the start of the list, which share one session."""
        return tuple(itertools.takewhile(lambda pair: pair[0] not in OWN_PROVIDERS, self.listed))

    def engines(self, options: SessionOptions) -> list[DeferredProvider]:
        """All engines in order; adjacent providers of onnxruntime become one session."""
        engines = []
        everyone = (*self.listed, *self.fallback)
        for is_ort, group in itertools.groupby(
            everyone, key=lambda pair: pair[0] not in OWN_PROVIDERS
        ):
            run = tuple(group)
            engines += (
                [_ort_engine(run, options)]
                if is_ort
                else [_own_engine(named, options) for named in run]
            )
        return engines


def available() -> list[str]:
    """Every provider that this machine can use, the preferred ones first."""
    torch = [TORCH, INDUCTOR] if importlib.util.find_spec("torch") is not None else []
    own = str(sysconfig.get_config_var("CXX") or "").split()[:1]  # what built this Python
    if INDUCTOR in torch and not any(map(shutil.which, (*own, *_COMPILERS))):
        torch.remove(INDUCTOR)  # it compiles C++
    has_openvino = OPENVINO in OWN_PROVIDERS and importlib.util.find_spec("openvino") is not None
    openvino = [OPENVINO] if has_openvino else []
    return [*ort.available(), *openvino, *torch, REFERENCE]


def choose(
    providers: Asked, provider_options: Sequence[Mapping[str, Any]] | None, options: SessionOptions
) -> ProviderChoice:
    """Check the user's list against this machine, and add the fallbacks."""
    here = available()
    asked = named_options(providers, provider_options)
    for name in asked:
        if name not in here:
            message = f"{name} is not on this machine\n{install_hint(name)}"
            if options.disable_fallback:
                raise ProviderMissing(message)
            warnings.warn(message, stacklevel=4)
    listed = tuple((name, given) for name, given in asked.items() if name in here)
    if not asked:
        listed = tuple((name, {}) for name in (*ort.available(), TORCH, REFERENCE) if name in here)
    names = [name for name, _ in listed]
    spare = [name for name in FALLBACKS if name in here and name not in names]
    fallback: Iterable[str] = () if options.disable_fallback else spare
    return ProviderChoice(listed, tuple((name, {}) for name in fallback), named=bool(asked))


def named_options(
    providers: Asked, provider_options: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Mapping[str, Any]]:
    """Options by full provider name, from either of onnxruntime's two ways to pass them."""
    if isinstance(providers, str):
        raise TypeError(f'providers must be a list of names: [{providers!r}], or "auto"')
    asked = list(providers or ())
    pairs = [_pair(item) for item in asked]
    if provider_options is not None:
        if len(provider_options) != len(asked) or not all(isinstance(item, str) for item in asked):
            raise OptionError("provider_options holds one dict for each name in providers")
        pairs = [(name, given) for (name, _), given in zip(pairs, provider_options, strict=True)]
    return dict(pairs)


def _pair(item: Any) -> Named:
    """A (name, options) pair from a name or a pair; `full_name` refuses anything else."""
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return full_name(item[0]), item[1]
    return full_name(item), {}


def full_name(text: str) -> str:
    """The full name of a provider, from its short or full name in any case.

    >>> full_name("cpu"), full_name("cpuexecutionprovider"), full_name("onnxruntime")
    ('CPUExecutionProvider', 'CPUExecutionProvider', 'CPUExecutionProvider')
    """
    return find_name(text, all_provider_names(), available())


def mentions_auto(providers: Any) -> bool:
    """Whether "auto" is in the list, with or without options."""
    listed = [providers] if isinstance(providers, str) else providers or ()
    names = (item[0] if isinstance(item, (tuple, list)) and item else item for item in listed)
    return any(isinstance(name, str) and name.lower() == AUTO for name in names)


def all_provider_names() -> list[str]:
    """The name of every provider, available on this machine or not."""
    return list(dict.fromkeys([*ort.known(), *OWN_PROVIDERS]))


def install_hint(name: str) -> str:
    """How to install a provider that this machine lacks."""
    if name == INDUCTOR and importlib.util.find_spec("torch") is not None:
        return "it needs a C++ compiler: install g++ or clang"
    if name in (TORCH, INDUCTOR):
        return "install it with: pip install onward[torch]"
    if name == OPENVINO:
        return "install it with: pip install onward[openvino]"
    return f"this onnxruntime has {', '.join(ort.available())}; another build may have {name}"


def _ort_engine(run: tuple[Named, ...], options: SessionOptions) -> DeferredProvider:
    return DeferredProvider(
        tuple(n for n, _ in run), lambda: ort_provider.OrtProvider(run, options)
    )


def _own_engine(named: Named, options: SessionOptions) -> DeferredProvider:
    name, given = named
    if name == REFERENCE:
        _check_options(name, given, ())
        return DeferredProvider((name,), lambda: _reference(options))
    if name == OPENVINO:
        _check_options(
            name, given, ("precision", "device", "threads", "cache_dir", "dynamic_quantization")
        )
        return DeferredProvider((name,), lambda: openvino_provider.make_openvino(given, options))
    if name == TORCH:
        _check_options(name, given, ("device",))
        return DeferredProvider(
            (name,), lambda: torch_provider.make_torch(given, options), _torch_may_have
        )
    _check_options(name, given, ("device", "dynamic", "mode", "capture"))
    return DeferredProvider(
        (name,), lambda: torch_compile.make_inductor(given, options), _torch_may_have
    )


def _torch_may_have(domain: str, operator: str) -> bool:
    return torch_operators.may_have(domain, operator)


def _reference(options: SessionOptions) -> Provider:
    return reference.ReferenceProvider(profiled=options.enable_profiling)


def _check_options(name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for option in given:
        if option not in known:
            raise OptionError(
                f"{name} has no option {option!r}; {suggest_names(option, known, 'it has')}"
            )
