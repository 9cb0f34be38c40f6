"""The options of `providers="auto"`, and the options of a session that its trials need, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import OptionError, ProviderMissing
from onward.measure.machine import cache_folder
from onward.message_text import suggest_names
from onward.providers.choose import available, full_name, install_hint
from onward.providers.options import SessionOptions
from onward.settings import finite_number

PRECISIONS = ("f32", "bf16", "f16")

_TRIAL_SETTINGS = (
    "graph_optimization_level",
    "execution_mode",
    "inter_op_num_threads",
    "use_deterministic_compute",
    "enable_cpu_mem_arena",
    "disable_fallback",
    "free_dimensions",
    "free_dimension_denotations",
    "config_entries",
    "custom_op_libraries",
)


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """How `providers="auto"` measures: `providers=[("auto", {"seconds": 1.0})]`."""

    seconds: float = 0.4  # of each measurement of a candidate
    precision: str = "f32"  # "f16" or "bf16": candidates may compute in lower precision
    providers: Sequence[str] | None = None  # None: all of this machine
    folder: str | None = None  # of cached results; None: in the user's cache
    fresh: bool = False  # measure even if there is a cached result
    threads: int = 0  # 0: several counts are tried
    limit: float = 120.0  # seconds that a candidate may take to open, or to be measured once

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise OptionError(
                f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision!r}"
            )
        for name in ("seconds", "limit"):
            given = finite_number(getattr(self, name))
            if given is None or given <= 0:
                raise OptionError(f"{name} must be a time above 0, not {getattr(self, name)}")
        if self.providers is not None:
            object.__setattr__(
                self, "providers", [_available_provider(name) for name in self.providers]
            )

    @property
    def cache_folder(self) -> Path:
        """The folder of cached results."""
        return Path(self.folder) if self.folder else cache_folder("tuning")


def _available_provider(text: str) -> str:
    """The full name of a provider of this machine."""
    name = full_name(text)
    if name not in available():
        raise ProviderMissing(f"auto cannot try {name}: not on this machine\n{install_hint(name)}")
    return name


def tuning_options(providers: Any, options: SessionOptions) -> TuningOptions:
    """The options of "auto", which must be the only entry of providers, for a session's options.

    A number of threads that the session names is the only one that is tried.
    """
    if options.isolated:
        raise OptionError(
            "auto is not available with isolated: it would load the model in this process\n"
            "name the providers, or leave isolated out"
        )
    listed = [providers] if isinstance(providers, str) else list(providers)
    if len(listed) > 1:
        raise OptionError(
            '"auto" cannot be combined with other providers\n'
            'to choose among a few: [("auto", {"providers": ["CPUExecutionProvider", ...]})]'
        )
    given = {} if isinstance(listed[0], str) else listed[0][1]
    if not isinstance(given, Mapping):
        raise OptionError(
            f"the options of auto must be a dictionary, not {type(given).__name__}\n"
            'for example: [("auto", {"seconds": 1.0})]'
        )
    known = TuningOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise OptionError(
                f"auto has no option {name!r}; {suggest_names(name, known, 'it has')}"
            )
    threads = {"threads": options.intra_op_num_threads} if options.intra_op_num_threads else {}
    return TuningOptions(**{**given, **threads})


def trial_settings(options: SessionOptions) -> dict[str, Any]:
    """The options of a session that its trials need, too, where they are not the default."""
    plain = SessionOptions()
    pairs = [(name, getattr(options, name)) for name in _TRIAL_SETTINGS]
    return {name: value for name, value in pairs if value != getattr(plain, name)}
