"""Compare onward.Module with eager torch on every architecture, each in a separate process.

    python -m conformance.architectures.check                        # all of them
    python -m conformance.architectures.check bert resnet --steps 5
    python -m conformance.architectures.check --json FILE --markdown FILE
    python -m conformance.architectures.check --engine exported      # what torch.export refuses

Outputs, gradients (of parameters and inputs) and buffers agree to 1e-5 of a tensor's largest value,
losses of 20 steps of AdamW to 1e-4. Architectures that draw random numbers agree in the mean.
"""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import circumstances
from conformance.architectures.engines import ENGINES
from conformance.architectures.table import ARCHITECTURES, FAMILIES

GROUPS = ("outputs", "gradients", "input gradients", "buffers", "losses")
ROOT = Path(__file__).parents[2]


def check(name: str, engine: str, steps: int, timeout: float) -> dict[str, Any]:
    """One architecture's row, made in a separate process."""
    command = [sys.executable, "-m", "conformance.architectures.compare", name, engine, str(steps)]
    row: dict[str, Any] = {"name": name, "engine": engine, "equal": False, "differences": {}}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return row | {"failed": f"it took longer than {timeout:.0f} s"}
    if done.returncode == 0:
        return row | json.loads(done.stdout.splitlines()[-1])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    raised = [line for line in lines if line[0].isalpha() and "Error" in line.split(":")[0]]
    last = raised[-1] if raised else lines[-1] if lines else f"it ended with {done.returncode}"
    return row | {"failed": last[:500], "error_lines": lines[-30:]}


def cells(row: dict[str, Any]) -> list[str]:
    """A row's differences, its first step, and what fell back, as text."""
    differences = row["differences"]
    found = []
    for group in GROUPS:
        difference = differences.get(group)
        if difference is None:
            found.append("")
        elif difference["error"] is not None:
            wrong = "" if difference["near"] else f" ({difference['tensor']})"
            found.append(f"{difference['error']:.1e}{wrong}")
        else:
            found.append(difference["tensor"])
    seconds = f"{row['first_step_s']:.1f} s" if "first_step_s" in row else ""
    return [*found, seconds, "; ".join(row.get("fell_back", [])) or row.get("failed", "")]


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table of all rows, by family."""
    heads = ("architecture", "parameters", *GROUPS, "first step", "fell back")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    by_name = {row["name"]: row for row in rows}
    for family, builders in FAMILIES.items():
        names = [builder.__name__ for builder in builders if builder.__name__ in by_name]
        if names:
            lines.append(f"| **{family}** " + "| " * (len(heads) - 1) + "|")
        for row in (by_name[name] for name in names):
            mark = "" if row["equal"] else " ✗"
            first = (f"`{row['name']}`{mark}", f"{row.get('parameters', 0):,}")
            lines.append(f"| {' | '.join(first + tuple(cells(row)))} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the architectures; none: all")
    parser.add_argument("--engine", default="module", choices=ENGINES)
    parser.add_argument("--steps", type=int, default=20, help="of the loss curve (20)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each one (300)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--markdown", type=Path, help="write a table to this file")
    given = parser.parse_args()
    for name in given.names:
        if name not in ARCHITECTURES:
            near = ", ".join(difflib.get_close_matches(name, ARCHITECTURES, cutoff=0.4))
            parser.error(f"no architecture {name!r}; near it: {near or ', '.join(ARCHITECTURES)}")
    rows = []
    print(f"{'architecture':28} {'equal':6} " + " ".join(f"{g:>15}" for g in GROUPS), flush=True)
    for name in given.names or ARCHITECTURES:
        row = check(name, given.engine, given.steps, given.timeout)
        rows.append(row)
        *found, seconds, remark = cells(row)
        line = " ".join(f"{cell:>15}" for cell in found)
        print(f"{name:28} {'yes' if row['equal'] else 'NO':6} {line} {seconds:>8}", flush=True)
        if remark:
            print(f"    {remark}", flush=True)
    equal = sum(row["equal"] for row in rows)
    whole = sum(row["equal"] and not row.get("fell_back") for row in rows)
    print(f"{equal} of {len(rows)} equal eager, {whole} without falling back")
    if given.json:
        given.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=2) + "\n")
    if given.markdown:
        given.markdown.write_text(markdown(rows))
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
