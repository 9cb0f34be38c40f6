"""Which node tests each provider passes: python -m conformance.survey [--write] [PROVIDER ...]

--write writes the failures to conformance/gaps/, each with its reason; review the change before you
commit it: a new line there is a regression.
"""

from __future__ import annotations

import re
import sys
import warnings

import onnxruntime

from conformance import nodes
from conformance.test_nodes import PROVIDERS, check, run

PEER = "stock onnxruntime"
RANDOM = ("test_bernoulli", "test_training_dropout")
ROUNDING = ("bf16", "fp16", "float16", "bfloat16", "dynamicquantize")


def reason(provider: str, name: str, error: Exception) -> str:
    """One line on why a test fails."""
    if name.startswith(RANDOM):
        return "random by nature: the expected values are one draw of many"
    if isinstance(error, AssertionError):
        if any(word in name for word in ROUNDING):
            return "rounding: the expected values were rounded after every step"
        return "another answer than ONNX's"
    if name.startswith("test_strnormalizer") and provider == "CPUExecutionProvider":
        return "locale: onnxruntime wants en_US.UTF-8 to be on the machine"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    missing = re.match(r"no provider runs (\S+) ", text)
    return f"it cannot run {missing[1]} as this test has it" if missing else text[:120]


def run_peer(name: str) -> None:
    """The same test on stock onnxruntime, without Onward."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = nodes.load()[name].model.SerializeToString()
    check(onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"]), name)


def survey(provider: str) -> dict[str, str]:
    failures = {}
    for name in nodes.load():
        try:
            run_peer(name) if provider == PEER else run(provider, name)
        except Exception as error:
            failures[name] = reason(provider, name, error)
    return failures


def write(provider: str, failures: dict[str, str]) -> None:
    """Replace a list of gaps by what failed here; gaps of other platforms are kept."""
    path, place = nodes.GAPS / f"{provider}.txt", nodes.here(provider)
    rows = nodes.gaps(provider)
    elsewhere = {name for name, row in rows.items() if not row.holds(place)}
    kept = [
        line
        for line in (path.read_text().splitlines() if path.exists() else [])
        if line.startswith("#") or re.split(r"[ :]", line)[0] in elsewhere - set(failures)
    ]
    bounds = {name: rows[name].bounds for name in failures if name in rows}
    found = [f"{name}{bounds.get(name, '')}: {why}" for name, why in failures.items()]
    path.write_text("".join(f"{line}\n" for line in sorted([*kept, *found])))


def main() -> None:
    warnings.simplefilter("ignore")
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    for provider in wanted or (*PROVIDERS, PEER):
        if provider != PEER and (package := nodes.missing(provider)) is not None:
            print(f"{provider}: {package} is not installed")
            continue
        failures = survey(provider)
        total = len(nodes.load())
        print(f"{provider}: {total - len(failures)} of {total} ({1 - len(failures) / total:.2%})")
        if "--write" in sys.argv and provider != PEER:
            write(provider, failures)


if __name__ == "__main__":
    main()
