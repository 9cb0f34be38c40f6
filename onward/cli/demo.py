"""onward demo: a digits classifier on every provider that this machine has."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

from onward.cli.digits import TRAIN, build_classifier, load_digits
from onward.graph.files import save
from onward.providers.choose import available
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_CALLS = 50  # of one image each; the median is shown


def demo() -> None:
    """Build a small digits classifier and run it on every provider."""
    console = Console()
    images, labels = load_digits()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, _progress(console) as progress:
        names = available()
        task = progress.add_task("building the classifier", total=1 + len(names))
        path = Path(folder) / "digits.onnx"
        save(build_classifier(images, labels), path)
        for name in names:
            progress.update(task, advance=1, description=name)
            results[name] = _in_own_process(path, name)
        progress.update(task, advance=1, description="done")
    console.print(_table(results, labels[TRAIN:]))
    console.print(_verdict(results))
    console.print(
        "\nNext: [bold]onward providers[/bold] lists what runs here, "
        "[bold]onward inspect model.onnx[/bold] looks into a model of yours,\n"
        "and onward.InferenceSession takes it wherever onnxruntime.InferenceSession did."
    )


def _progress(console: Console) -> Progress:
    bar = BarColumn(bar_width=24)
    text = TextColumn("{task.description}")
    return Progress(SpinnerColumn(), text, bar, TimeElapsedColumn(), console=console)


def _in_own_process(path: Path, provider: str) -> dict[str, Any]:
    """Engines' thread pools fight inside one process, and memory is a process's own: one each."""
    command = [sys.executable, "-m", "onward.cli.demo", str(path), provider]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(path: str, provider: str) -> dict[str, Any]:
    """Answers, time and memory of one provider, in this process."""
    images, _ = load_digits()
    held_out, one = images[TRAIN:], images[:1]
    start = time.perf_counter()
    options = SessionOptions(disable_fallback=True)
    session = InferenceSession(path, options, providers=[provider])
    session.run(None, {"image": one})
    first = time.perf_counter() - start
    session.run(None, {"image": one})
    times = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        session.run(None, {"image": one})
        times.append(time.perf_counter() - start)
    (answers,) = session.run(None, {"image": held_out})
    return {
        "answers": answers.tolist(),
        "first": first,
        "latency": float(np.median(times)),
        "memory": _peak_memory(),
    }


def _peak_memory() -> int:
    """Bytes at this process's fullest."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says on Linux starts with the parent's
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _table(results: dict[str, Any], labels: Any) -> Table:
    table = Table(title=f"handwritten digits: {len(labels)} images not seen before")
    table.add_column("provider", no_wrap=True)
    for column in ("right", "apart by", "ready in", "one image", "memory"):
        table.add_column(column, justify="right")
    expected = np.array(results["ReferenceExecutionProvider"]["answers"])
    for name, result in results.items():
        if "error" in result:
            table.add_row(name, f"[red]{result['error']}[/red]")
            continue
        answers = np.array(result["answers"])
        table.add_row(
            name,
            f"{np.mean(answers.argmax(1) == labels):.1%}",
            f"{np.abs(answers - expected).max():.1e}",
            f"{result['first']:.2f} s",
            f"{result['latency'] * 1e6:,.0f} us",
            f"{result['memory'] / 2**20:,.0f} MiB",
        )
    return table


def _verdict(results: dict[str, Any]) -> str:
    answers = [np.array(r["answers"]) for r in results.values() if "error" not in r]
    apart = max(np.abs(a - answers[-1]).max() for a in answers)
    if apart < 1e-4:
        return f"[green]{len(answers)} providers agree[/green] (within {apart:.0e})."
    return f"[red]The providers do not agree: {apart:.1e} apart.[/red]"


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
