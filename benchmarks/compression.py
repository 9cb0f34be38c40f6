"""Measure `onward.compress` against onnxruntime.quantization, NNCF, onnxsim and converter-common.

    python benchmarks/compression.py                       # every case, and a file of results
    python benchmarks/compression.py int8 --models minilm,mobilenetv2
    python benchmarks/compression.py fp16 --peers-python ENVIRONMENT/bin/python

int8: nine models quantized by each. fp16: the nine in 16 bits. int4, int2: MiniLM and MNIST-8 with
few bits. smollm2: a language model at 4.4 bits a weight. prune: half of each of the nine.

Every compression runs in a process of its own, peers in an environment of their own (made under
build/ unless --peers-python names one). All results of a model are then timed in turns in one
process, on one thread, by CPU time, on stock onnxruntime; what their outputs lost is measured on
data that no one has calibrated with. A language model is timed for one token and for a prompt of
128, too, on onnxruntime and on OpenVINO, against float32 on onnxruntime.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compression_models as models
import numpy as np
import report
from rich.console import Console
from rich.table import Table

from onward.compress.calibration import Calibration
from onward.compress.quality import Judge
from onward.compress.timing import time_in_turns
from onward.errors import OnwardError
from onward.sessions.feed_files import inputs_of
from onward.sessions.inference import InferenceSession

HERE = Path(__file__).parent
NOTHING_HELPS = 1  # the exit code of onward quantize
LIMIT = 1200  # seconds that one compression may take
LENGTHS = {"smollm2": {"one token": 1, "prompt": 128}}  # tokens that are timed in addition
ENGINES = ("cpu", "openvino")  # and what runs them


@dataclass(frozen=True)
class Case:
    """A command of ours, the peers that do the same, and the models."""

    command: tuple[str, ...]
    peers: tuple[str, ...]
    models: tuple[str, ...]


_PRUNERS = ("onnxsim-prune",)
CASES = {
    "int8": Case(
        ("quantize", "--to", "int8", "--drop", "1%"),
        ("ort-dynamic", "ort-dynamic-per-channel", "ort-static", "ort-static-u8s8", "nncf",
         "onnxsim-dynamic", "onnxsim-static"),
        models.NINE,
    ),
    "fp16": Case(("quantize", "--to", "fp16"), ("converter-float16",), models.NINE),
    "int4": Case(("quantize", "--to", "int4"), ("ort-int4",), ("minilm", "mnist-8")),
    "int4-tuned": Case(("quantize", "--to", "int4", "--tune", "1min"), (), ("mnist-8",)),
    # a smaller drop would be bought with more bits
    "int2": Case(
        ("quantize", "--to", "int2", "--tune", "10min", "--drop", "7%"), (), ("minilm", "mnist-8")
    ),
    "smollm2": Case(("quantize", "--to", "int4", "--bits", "4.4"), ("ort-int4",), ("smollm2",)),
    "prune": Case(("prune", "--keep", "0.5"), _PRUNERS, models.NINE),
}  # fmt: skip


def main() -> None:
    given = _arguments()
    named = given.peers_python  # peers run in other folders
    python = os.path.abspath(named) if named else _peers_environment()
    rows: list[dict[str, Any]] = []
    console = Console(width=160)
    for name in given.cases or CASES:
        case = CASES[name]
        for model in given.models.split(",") if given.models else case.models:
            found = _measure_model(name, case, model, python, given)
            rows += found
            _show(console, f"{name}: {model}", found)
    if not given.no_write:
        print(report.write("compression", rows, given.output))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="all if none is named")
    parser.add_argument("--models", default="", help="names, divided by commas")
    parser.add_argument("--peers-python", help="the Python of an environment with the peers")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, for each model")
    parser.add_argument("--no-write", action="store_true", help="write no file of results")
    parser.add_argument("--output", type=Path, help="the file of results, instead of a dated one")
    return parser.parse_args()


def _peers_environment() -> str:
    folder = HERE.parent / "build" / "compression-peers"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        needed = HERE / "compression_peers" / "requirements.txt"
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", needed], check=True)
    return str(python)


def _measure_model(
    name: str, case: Case, model: str, python: str, given: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for the float model, for ours, and for each peer."""
    original = models.path(model)
    rows: list[dict[str, Any]] = [{"engine": "float32", "file": original, "compress_s": 0.0}]
    with tempfile.TemporaryDirectory() as folder:
        feeds = _write_feeds(model, Path(folder))
        ours = Path(folder) / "onward.onnx"
        data = models.FOLDER / f"{model}.npz"
        command = [
            sys.executable, "-m", "onward", case.command[0], str(original), "--data", str(data),
            *case.command[1:], *_tune_data(case, model), "--save", str(ours),
        ]  # fmt: skip
        rows.append(_compress("onward", command, ours))
        if not ours.exists() and rows[-1]["exit_code"] == NOTHING_HELPS:
            rows[-1] |= {"file": original, "error": "nothing helps: float32 is kept"}
        script = str(HERE / "compression_peers" / "compress_with_peer.py")
        for peer in () if given.no_peers else case.peers:
            out = Path(folder) / f"{peer}.onnx"
            rows.append(
                _compress(peer, [python, script, peer, str(original), feeds, str(out)], out)
            )
        _time(rows, model, given.seconds)
        _time_lengths(rows, model, given.seconds)
        _rate(rows, model)
        for row in rows:
            row |= {"case": name, "model": model}
            file = row.pop("file")
            row["bytes"] = _size(file) if Path(file).exists() else None
    for row in rows:
        row["ratio"] = row["bytes"] / rows[0]["bytes"] if row["bytes"] else None
        row["speedup"] = rows[0]["seconds"] / row["seconds"] if row.get("seconds") else None
    return rows


def _tune_data(case: Case, model: str) -> list[str]:
    file = models.tune_file(model) if "--tune" in case.command else None
    return [] if file is None else ["--tune-data", str(file)]


def _write_feeds(model: str, folder: Path) -> str:
    """The calibration data as sets of feeds, one for each index of the first axis."""
    data = Calibration(models.FOLDER / f"{model}.npz", inputs_of(models.path(model)), limit=16)
    sets = list(data.batches())
    whole = [each for each in sets if all(np.shape(each[n]) == np.shape(sets[0][n]) for n in each)]
    file = folder / "feeds.npz"
    np.savez(file, **{name: np.stack([each[name] for each in whole]) for name in whole[0]})
    return str(file)


def _compress(engine: str, command: Sequence[str], out: Path) -> dict[str, Any]:
    """A row for one engine; where ours says that nothing helps, the user keeps the float model."""
    start = time.monotonic()
    row: dict[str, Any] = {"engine": engine, "file": out, "error": ""}
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False,
            cwd=out.parent,
        )  # fmt: skip
        row["exit_code"] = done.returncode
        if not out.exists():
            row["error"] = (done.stderr.strip().splitlines() or ["no model was written"])[-1][:200]
    except subprocess.TimeoutExpired:
        row["error"] = f"not done within {LIMIT} s"
    row["compress_s"] = round(time.monotonic() - start, 1)
    return row


def _time(rows: list[dict[str, Any]], model: str, seconds: float) -> None:
    """The seconds of one run, at the shapes that the bars name, all in turns."""
    feeds = _timed_feeds(model)
    ready = {}
    for row in rows:
        if Path(row["file"]).exists():
            try:
                InferenceSession(row["file"]).run(None, feeds)
                ready[row["engine"]] = row["file"]
            except Exception as error:
                row["error"] = f"does not run: {str(error).splitlines()[0][:150]}"
    for engine, taken in time_in_turns(ready, feeds, seconds=seconds).items():
        next(row for row in rows if row["engine"] == engine)["seconds"] = taken


def _time_lengths(rows: list[dict[str, Any]], model: str, seconds: float) -> None:
    """The speed at other numbers of tokens on each engine: that of float32 on onnxruntime is 1."""
    for name, length in LENGTHS.get(model, {}).items():
        feeds = {key: array[:1, :length] for key, array in models.test_data(model).items()}
        ready: dict[str, Path] = {}
        for row in rows:
            for engine in ENGINES if "seconds" in row else ():
                if _runs(row["file"], feeds, engine):
                    ready[f"{row['engine']} on {engine}"] = row["file"]
        providers = {each: [each.rpartition(" ")[2]] for each in ready}
        times = time_in_turns(ready, feeds, providers=providers, seconds=seconds)
        for row in rows:
            mine = {each: times.get(f"{row['engine']} on {each}") for each in ENGINES}
            first = times["float32 on cpu"]
            row[name] = {each: first / taken for each, taken in mine.items() if taken}


def _runs(file: Path, feeds: dict[str, Any], engine: str) -> bool:
    try:
        InferenceSession(file, providers=[engine]).run(None, feeds)
    except OnwardError:
        return False
    return True


def _timed_feeds(model: str) -> dict[str, Any]:
    data = models.test_data(model)
    inputs = inputs_of(models.path(model))
    return Calibration({n: a for n, a in data.items() if n != "label"}, inputs, batch=1).first()


def _rate(rows: list[dict[str, Any]], model: str) -> None:
    """What each model's outputs lost on unseen data."""
    data = models.test_data(model)
    labels = data.pop("label", None)
    unseen = Calibration(data, inputs_of(models.path(model)), batch=16)
    judge = Judge(models.path(model), unseen)
    for row in rows:
        if "seconds" not in row:
            continue
        quality = judge.rate(row["file"])
        row |= {
            "similarity": quality.similarity,
            "error_share": quality.error,
            "agreement": quality.agreement,
        }
        row["metric"] = _metric(model, row["file"], data, labels)


def _metric(model: str, file: Path, data: dict[str, Any], labels: Any) -> float | None:
    """The figure of a model's bar: sentences' cosine, accuracy, perplexity."""
    session = InferenceSession(file)
    if "minilm" in model:
        return sentence_cosine(InferenceSession(models.path(model)), session, data)
    if model == "mnist-8":
        name = session.get_outputs()[0].name
        right = [
            np.argmax(session.run([name], {"Input3": image[None]})[0]) == label
            for image, label in zip(data["Input3"], labels, strict=True)
        ]
        return float(np.mean(right))
    if model == "smollm2":
        return perplexity(session, data["input_ids"])
    return None


def sentence_cosine(original: Any, changed: Any, data: dict[str, Any]) -> float:
    """The mean cosine of sentence embeddings: means of the last hidden state over tokens."""
    embeddings = []
    for session in (original, changed):
        names = [each.name for each in session.get_inputs()]
        hidden = session.run(None, {name: data[name] for name in names})[0]
        mask = data["attention_mask"][..., None] if hidden.ndim == 3 else None
        pooled = hidden if mask is None else (hidden * mask).sum(1) / mask.sum(1)
        embeddings.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
    return float((embeddings[0] * embeddings[1]).sum(1).mean())


def perplexity(session: Any, tokens: np.ndarray[Any, Any]) -> float:
    """exp of the mean negative log-likelihood of each next token."""
    total, count = 0.0, 0
    for row in tokens:
        scores = session.run(None, {"input_ids": row[None]})[0][0, :-1].astype(np.float64)
        shifted = scores - scores.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        total -= logs[np.arange(len(row) - 1), row[1:]].sum()
        count += len(row) - 1
    return float(np.exp(total / count))


def _size(file: Path) -> int:
    """The bytes of a model and of its external data."""
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))


def _show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column in (
        "", "file", "speed", "similarity", "error", "agreement", "metric", "took", "lengths", "",
    ):  # fmt: skip
        table.add_column(column)
    for row in rows:
        table.add_row(
            row["engine"],
            *(
                "" if row.get(key) is None else form.format(row[key])
                for key, form in (
                    ("ratio", "{:.3f}"), ("speedup", "{:.2f}x"), ("similarity", "{:.4f}"),
                    ("error_share", "{:.2%}"), ("agreement", "{:.1%}"), ("metric", "{:.4f}"),
                    ("compress_s", "{:.0f} s"),
                )
            ),
            "; ".join(_show_length(row, name) for name in LENGTHS.get(row["model"], ())),
            row.get("error", ""),
        )  # fmt: skip
    console.print(table)


def _show_length(row: dict[str, Any], name: str) -> str:
    speeds = ", ".join(f"{engine} {speed:.2f}x" for engine, speed in row.get(name, {}).items())
    return f"{name}: {speeds}"


if __name__ == "__main__":
    main()
