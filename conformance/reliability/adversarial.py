"""R2: malicious models are refused, each with its own error, fast and in little memory.

    python -m conformance.reliability.adversarial            # the figure
    python -m conformance.reliability.adversarial --verbose  # ... and a line for each model

Each model is opened in a separate process, with the system's limits on memory and time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onward.errors
from conformance.reliability import corpus_files, corpus_graphs, corpus_growth
from conformance.reliability.corpus import CASES
from onward.measure.memory.resident_memory import most_resident, reset_peak
from onward.providers import reference
from onward.providers.options import SessionOptions
from onward.providers.torch import provider as torch_provider
from onward.sessions import partitioned_plan, plan_model
from onward.sessions.inference import InferenceSession

LONGEST = 1.0  # seconds
LARGEST = 512  # MiB, of the whole process
_HANGS = 20  # seconds
_TABLES = (corpus_growth, corpus_graphs, corpus_files)  # which fill CASES
_WARM = (partitioned_plan, plan_model, reference, torch_provider)  # imports do not count


@dataclass(frozen=True)
class Outcome:
    """The outcome of opening one model."""

    name: str
    error: str  # the class of what was raised, "" for none
    message: str
    kinds: tuple[str, ...]  # the classes that it is, too
    seconds: float
    memory: int  # MiB at the fullest

    def fault(self) -> str:
        """What is wrong with it, or nothing."""
        _, kind, words = CASES[self.name]
        if not self.error:
            return f"not refused: {self.message}"
        if kind not in self.kinds or words not in self.message:
            return f"refused as {self.error}: {self.message[:200]}"
        if self.seconds > LONGEST:
            return f"took {self.seconds:.2f} s"
        return f"took {self.memory} MiB" if self.memory > LARGEST else ""


def attempt(name: str) -> Outcome:
    """Open one model in a child process with limits."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        signal.alarm(_HANGS)
        try:
            with os.fdopen(writable, "w") as answer:
                answer.write(json.dumps(_in_child(name)))
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return Outcome(name, "", f"the process died with status {status}", (), 0.0, 0)
    found = json.loads(text)
    return Outcome(name, **{**found, "kinds": tuple(found["kinds"])})


def _in_child(name: str) -> dict[str, Any]:
    build, _, _ = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        made = build(Path(folder))
        source, weights = made if isinstance(made, tuple) else (made, None)
        _limit()
        start = time.process_time()  # another load of the machine is not the model's
        try:
            InferenceSession(source, SessionOptions(log_severity_level=4), weights=weights)
            error: BaseException | None = None
        except BaseException as raised:
            error = raised
        seconds = time.process_time() - start
    kinds = [kind.__name__ for kind in type(error).__mro__] if error is not None else []
    if error is not None and not isinstance(error, onward.errors.OnwardError):
        kinds, message = [], "".join(traceback.format_exception(error))[-600:]
    else:
        message = str(error) if error is not None else "it opened"
    return {
        "error": kinds[0] if kinds else "",
        "message": message,
        "kinds": kinds,
        "seconds": seconds,
        "memory": most_resident() >> 20,
    }


def _limit() -> None:
    """Limit this process to 2 GiB more than now and ten seconds of CPU time; reset its peak."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    reset_peak()


def figure(outcomes: list[Outcome]) -> str:
    """The line that docs/reliability.md quotes."""
    refused = [each for each in outcomes if not each.fault()]
    slowest = max(outcomes, key=lambda each: each.seconds)
    largest = max(outcomes, key=lambda each: each.memory)
    return (
        f"R2: {len(refused)}/{len(outcomes)} refused; "
        f"slowest {slowest.seconds:.2f} s ({slowest.name}), "
        f"largest {largest.memory} MiB ({largest.name})"
    )


def main() -> int:
    outcomes = [attempt(name) for name in CASES]
    for each in outcomes:
        if "--verbose" in sys.argv or each.fault():
            fault = f"  FAULT: {each.fault()}" if each.fault() else ""
            print(f"{each.seconds:5.2f} s {each.memory:4} MiB {each.error:16} {each.name}{fault}")
    print(figure(outcomes))
    return 1 if any(each.fault() for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
