"""provider="fastest": the engine that runs a call in the least time, or PyTorch itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

from onward.message_text import first_line
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.fallback import Slower

log = logging.getLogger("onward")


def fastest_program(
    compilations: Iterable[Callable[[], CapturedProgram]],
    seconds: Callable[[CapturedProgram], float],
    torch_seconds: Callable[[], float],
) -> CapturedProgram:
    """The program of the engine that takes the least seconds, if PyTorch does not take less.

    The first engine has to run the call. Others that cannot (Inductor without a C++ compiler) are
    left out.
    """
    best, least, texts = None, math.inf, []
    for compile_program in compilations:
        try:
            program = compile_program()
            taken = seconds(program)
        except Exception as error:  # compilers raise many kinds
            if best is None:
                raise
            log.warning("fastest: an engine is left out: %s", first_line(error))
            continue
        texts.append(f"{program.engine.name} {1000 * taken:.1f} ms")
        if taken < least:
            best, least = program, taken
    assert best is not None
    theirs = torch_seconds()
    log.info("fastest: %s, PyTorch %.1f ms", ", ".join(texts), 1000 * theirs)
    if theirs < least:
        raise Slower(f"PyTorch is faster: {1000 * theirs:.1f} ms, {', '.join(texts)}")
    return best
