"""R25: no pickle is read from any file, unless the caller allows it.

    python -m conformance.reliability.pickles [--provider NAME ...]

Files of every kind are opened in every default way by a process that records each unpickling: valid
files, and pickles under the names of such files, which would leave a mark if they were read. The
source is searched, too: the modules that can unpickle must be those that are listed here.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import logging
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from safetensors.numpy import save_file

import onward
from onward.checkpoints import tensor_files
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.manifest import NAME, file_name
from onward.cli.main import main as command_line
from onward.errors import OnwardError
from onward.losses.regression import MSE
from onward.optimizers.sgd import SGD
from onward.providers.choose import available
from onward.training.api.checkpoint_state import CheckpointState
from onward.training.artifacts import LossType, generate_artifacts

PROVIDERS = ("default", "CPUExecutionProvider", "TorchExecutionProvider",
             "ReferenceExecutionProvider", "OpenVINOExecutionProvider")  # fmt: skip
UNPICKLERS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
_SUSPECT = re.compile(rf"{'|'.join(UNPICKLERS)}|\bload\(")
ALLOWED = {  # modules that may, and why
    "providers.torch.exported_programs": "reads .pt2 where ModelLimits.allow_pickle says so",
    "pytorch.trainer.checkpoints": "torch.load reads only tensors (weights_only)",
    "pytorch.module_source": "names pickle's error; torch.load reads only tensors (weights_only)",
}
MODEL = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"""
_REFUSED = re.compile(r"m\.pt2|m\.ort.*(Torch|Reference|OpenVINO)|load\('m\.ort")  # good ones, too
X = np.ones(2, np.float32)


class Bait:
    """An object that leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self._mark),)


# -- files and the ways to open them ---------------------------------------------------------------


def honest_files(folder: Path) -> None:
    """Valid files of every kind."""
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, folder / "m.onnx")
    for suffix in ("textproto", "json", "onnxtxt"):
        onnx.save(model, folder / f"m.{suffix}")
    onnx.save(model, folder / "e.onnx", save_as_external_data=True, location="e.data",
              size_threshold=0)  # fmt: skip
    options = onward.SessionOptions(optimized_model_filepath=str(folder / "m.ort"))
    onward.InferenceSession(folder / "m.onnx", options, ["CPUExecutionProvider"])
    save_file({"w": X}, folder / "w.safetensors")
    index = {"weight_map": {"w": "w.safetensors"}}
    (folder / "w.safetensors.index.json").write_text(json.dumps(index))
    np.save(folder / "x.npy", X)
    np.savez(folder / "x.npz", x=X)
    checkpoints = Checkpoints(folder / "run")
    for step in (1, 2):
        checkpoints.save({"w": X}, {"epoch": step}, step, metric=float(step))
    program = onward.compile_training(folder / "m.onnx", MSE(), SGD(lr=0.1))
    program.save(folder / "program")
    onward.TrainingSession(program).save(folder / "session")
    generate_artifacts(onnx.load(folder / "m.onnx"), requires_grad=["w"], loss=LossType.MSELoss,
                       artifact_directory=folder)  # fmt: skip


def baits(folder: Path, mark: Path) -> None:
    """Pickles under the names of all these files, and of files that torch writes."""
    data = pickle.dumps(Bait(mark))
    honest = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    for path in honest:
        if path.suffix not in (".npy", ".npz", ".data"):
            path.write_bytes(data)
    for suffix in ("pt", "pth", "bin", "pkl"):
        (folder / f"m.{suffix}").write_bytes(data)
    inside = np.array([Bait(mark)], object)
    np.save(folder / "x.npy", inside, allow_pickle=True)
    np.savez(folder / "x.npz", x=inside)


def sessions(folder: Path, provider: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Models through an InferenceSession."""
    names = None if provider == "default" else [provider]
    quiet = onward.SessionOptions(log_severity_level=4)

    def opening(source: Path, **more: Any) -> Callable[[], Any]:
        return lambda: onward.InferenceSession(source, quiet, names, **more).run(None, {"x": X})

    for path in sorted(folder.glob("[em].*")):
        if path.suffix != ".data":
            yield f"InferenceSession({path.name!r}) on {provider}", opening(path)
    for weights in ("w.safetensors", "w.safetensors.index.json", "m.bin"):
        if (folder / weights).exists():
            model, data = folder / "good.onnx", folder / weights
            yield f"weights={weights!r} on {provider}", opening(model, weights=data)


def others(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All other functions that read a file."""
    for path in sorted(folder.glob("[em].*")):
        if path.suffix != ".data":
            yield f"onward.load({path.name!r})", lambda path=path: onward.load(path)
    run = folder / "run"
    yield "files.read", lambda: tensor_files.read(run / file_name(1))
    yield "files.read_header", lambda: tensor_files.read_header(run / file_name(1))
    yield "Checkpoints.latest", lambda: Checkpoints(run).latest()
    yield "Checkpoints.best", lambda: Checkpoints(run).best()
    yield "Checkpoints.load", lambda: Checkpoints(run).load(2)
    yield "TrainingSession(folder)", lambda: onward.TrainingSession(folder / "program")
    program = folder.parent / "good" / "program"
    yield "TrainingSession.load", lambda: onward.TrainingSession(program).load(folder / "session")
    yield "CheckpointState", lambda: CheckpointState.load_checkpoint(folder / "checkpoint")
    for name in ("x.npy", "x.npz"):
        yield (
            f"onward run --feed {name}",
            lambda name=name: _command(
                ["run", str(folder / "good.onnx"), "--feed", str(folder / name)]
            ),
        )
    yield "onward inspect m.pt2", lambda: _command(["inspect", str(folder / "m.pt2")])
    yield f"a damaged {NAME}", lambda: Checkpoints(run).steps()


def _command(words: list[str]) -> None:
    sys.argv = ["onward", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            command_line()
        except SystemExit as ended:
            if ended.code:
                raise OnwardError(f"exit code {ended.code}") from ended


# -- the process that watches ----------------------------------------------------------------------


class Watch:
    """Records unpickling: audit events of pickle, and calls of functions that read pickles."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        sys.addaudithook(self._hear)
        for name in ("load", "loads"):
            setattr(pickle, name, self._noting(getattr(pickle, name)))
        noting, real = self._note, pickle.Unpickler

        class Unpickler(real):  # type: ignore[valid-type, misc]
            def __init__(self, *arguments: Any, **named: Any) -> None:
                noting("pickle.Unpickler")
                super().__init__(*arguments, **named)

        pickle.Unpickler = Unpickler  # type: ignore[misc, assignment]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            self._note(f"{event} {arguments}")

    def _noting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self._note(f"pickle.{real.__name__}")
            return real(*arguments, **named)

        return noted

    def _note(self, what: str) -> None:
        frames = traceback.extract_stack(limit=7)[:-2]
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
        self.seen.append(f"{what} ({where})")


def open_and_watch(providers: list[str]) -> dict[str, Any]:
    """Open everything, and count."""
    watch, rows, faults = Watch(), 0, list[str]()
    logging.getLogger("onward").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        good, bad, mark = Path(name) / "good", Path(name) / "bad", Path(name) / "mark"
        for folder in (good, bad):
            folder.mkdir()
            honest_files(folder)
            shutil.copy(folder / "m.onnx", folder / "good.onnx")
        baits(bad, mark)
        shutil.copy(good / "good.onnx", bad / "good.onnx")
        _write_program(bad / "m.pt2", mark, by_torch=False)
        _write_program(good / "m.pt2", None, by_torch="TorchExecutionProvider" in providers)
        del watch.seen[:]  # torch may have unpickled while it wrote
        for folder in (good, bad):
            ways = [way for provider in providers for way in sessions(folder, provider)]
            for what, open_it in [*ways, *others(folder)]:
                rows += 1
                fault = _fault(open_it, watch, mark, folder is good and not _REFUSED.search(what))
                faults += [f"{folder.name} {what}: {fault}"] if fault else []
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(Bait(mark)))
        if not mark.exists() or not watch.seen:
            faults.append("the watch does not see a pickle that is read")
    return {"opened": rows, "faults": faults}


def _write_program(path: Path, mark: Path | None, by_torch: bool) -> None:
    """A torch program; with a mark, an archive in which everything is a pickle that leaves it."""
    with zipfile.ZipFile(path, "w") as archive:  # as torch packs it
        archive.writestr("m/data.pkl", pickle.dumps(None if mark is None else Bait(mark)))
    if by_torch and mark is None:
        import torch

        torch.export.save(torch.export.export(torch.nn.Tanh(), (torch.ones(2),)), path)


def _fault(open_it: Callable[[], Any], watch: Watch, mark: Path, must_open: bool) -> str:
    del watch.seen[:]
    mark.unlink(missing_ok=True)
    why = ""
    try:
        open_it()
    except (OnwardError, FileNotFoundError) as error:
        why = f"refused: {error}" if must_open else ""
    except Exception as error:
        why = f"failed: {error!r}"
    if mark.exists():
        return "the pickle ran"
    return f"unpickled: {watch.seen[0]}" if watch.seen else why


# -- the source ------------------------------------------------------------------------------------


def able_to_unpickle(sources: dict[str, str]) -> list[str]:
    """The modules that import an unpickler, or call a loader that may use one."""
    found = []
    for module, source in sources.items():
        if not _SUSPECT.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Import(names=names):
                    names_ = {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(module=str(name)):
                    names_ = {name.split(".")[0]}
                case ast.Call(func=ast.Attribute() as function, keywords=keywords):
                    called = ast.unparse(function)
                    plain = any(
                        k.arg == "allow_pickle" and ast.unparse(k.value) == "False"
                        for k in keywords
                    )
                    loads = ("torch.load", "torch.export.load", "torch.jit.load")
                    bad = called in loads or (called in ("np.load", "numpy.load") and not plain)
                    names_ = UNPICKLERS if bad else set()
                case _:
                    continue
            if names_ & UNPICKLERS:
                found.append(module)
    return sorted(set(found))


def read_sources() -> dict[str, str]:
    package = Path(onward.__file__).parent
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(package.rglob("*.py"))
    }


def open_all(providers: list[str]) -> tuple[list[str], str]:
    """What was unpickled, and the figure; in a separate process, since a watch cannot end."""
    command = [sys.executable, "-m", "conformance.reliability.pickles", "--child", *providers]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return [done.stderr[-2000:]], "R25: the process that watches died"
    found = json.loads(done.stdout.splitlines()[-1])
    faults = found["faults"]
    extra = sorted(set(able_to_unpickle(read_sources())) - set(ALLOWED))
    faults += [f"onward.{module} could unpickle, and is not named here" for module in extra]
    n = found["opened"]
    failures = f"{len(faults)} in {n}" if faults else f"0 in {n}: < 3/{n}"
    return faults, (
        f"R25: {n} files opened in default ways ({len(providers)} providers), half of them baits; "
        f"unpickled: {failures}; {len(ALLOWED)} modules of {len(read_sources())} could unpickle, "
        "none of them from a file that was not allowed to"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--provider", action="append", choices=PROVIDERS)
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(open_and_watch(given.child)))
        return 0
    here = [name for name in PROVIDERS if name == "default" or name in available()]
    faults, line = open_all(given.provider or here)
    print(line)
    for fault in faults[:20]:
        print(f"  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
