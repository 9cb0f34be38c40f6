"""Open and run one mutant, and report the outcome; as a program, the worker of `mutated`.

python -m conformance.reliability.mutant_worker PROVIDER SEED SEEDS-FILE  # numbers on stdin
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import onnx

import onward
from conformance.reliability import mutators, seeds
from onward.errors import OnwardError
from onward.graph.random_feeds import random_feeds

RUN_TIMEOUT = 1.0
LARGEST_FEED = 1 << 22  # elements; beyond it a mutant is opened but not fed
_FALLBACKS = ("TorchExecutionProvider", "ReferenceExecutionProvider")
MEMORY = 4 << 30  # bytes that a worker may take beyond its start


def attempt(provider: str, data: bytes | onnx.ModelProto, raising: bool = False) -> dict[str, Any]:
    """Open a model and run it once: `ran`, the class of its rejection, or `foreign`.

    Time is CPU time, so that other load on the machine does not count.
    """
    options = onward.SessionOptions(
        log_severity_level=4,
        intra_op_num_threads=1,
        run_timeout=RUN_TIMEOUT,
        disable_fallback=provider != "default",
    )
    started = time.process_time()
    outcome, detail = "ran", ""
    try:
        names = None if provider == "default" else [provider]
        session = onward.InferenceSession(data, options, names)
        inputs = session.get_inputs()
        if any(_elements(arg.shape) > LARGEST_FEED for arg in inputs):
            outcome = "opened"
        else:
            session.run(None, random_feeds(inputs))
    except OnwardError as error:
        outcome = type(error).__name__
        if raising:
            traceback.print_exc()
    except Exception as error:
        if raising:
            raise
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
        outcome, detail = "foreign", f"{type(error).__name__}: {str(error)[:150]} ({where})"
    return {"outcome": outcome, "detail": detail, "took": time.process_time() - started}


def _elements(shape: Any) -> int:
    return math.prod(size if isinstance(size, int) else 1 for size in shape or ())


def _limit_memory() -> None:
    if sys.platform == "linux":
        import resource

        with open("/proc/self/status") as status:
            size = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
        resource.setrlimit(resource.RLIMIT_AS, (size * 1024 + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    provider, seed, corpus = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    models = seeds.read(Path(corpus))
    engines = [provider, *(_FALLBACKS if provider == "default" else ())]
    for name in engines:  # imported before the clock runs, and the planner, which a proto needs
        attempt(name, models[0])
        attempt(name, onnx.load_model_from_string(models[0]))
    _limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps({"ready": True}), file=out)
        for line in sys.stdin:
            number = int(line)
            answer = attempt(provider, mutators.mutant(models, seed, number))
            print(json.dumps({"number": number, **answer}), file=out)


if __name__ == "__main__":
    main()
