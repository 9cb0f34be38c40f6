"""onward.compat replaces onnxruntime's names. tests/training/test_scripts.py has whole scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onward import compat

REAL = {
    "onnxruntime/__init__.py": "",
    "onnxruntime/training/__init__.py": "from onnxruntime.training import api",
    "onnxruntime/training/artifacts.py": "",
    "onnxruntime/training/api/__init__.py": "real = True",
}


def ran(code: str, path: Path | None = None) -> str:
    """What a fresh process prints; modules of `path` come before those that are installed."""
    first = "" if path is None else f"import sys; sys.path.insert(0, {str(path)!r})\n"
    command = [sys.executable, "-W", "error", "-c", first + textwrap.dedent(code)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def with_files(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(REAL[name])
    return folder


@pytest.mark.integration
def test_onnxruntime_training_names_are_onwards() -> None:
    code = """
        import onward.compat
        onward.compat.install()
        onward.compat.install()

        from onnxruntime.training import artifacts
        from onnxruntime.training.api import CheckpointState, Module
        from onnxruntime.training.api.checkpoint_state import Parameter
        import onnxruntime.training.onnxblock as onnxblock
        import onnxruntime.training.onnxblock.loss as loss
        import onnxruntime.training.api as orttraining
        import onnxruntime

        import onward.training.api.checkpoint_state
        import onward.training.artifacts
        assert artifacts is onward.training.artifacts
        assert artifacts.__spec__.name == "onward.training.artifacts"
        assert Module is onward.training.api.Module and orttraining.Module is Module
        assert Parameter is onward.training.api.checkpoint_state.Parameter
        assert onnxblock is onward.training.onnxblock
        assert loss is onnxblock.loss is onward.training.onnxblock.loss
        assert onnxruntime.training is onward.training
        assert onnxruntime.InferenceSession
        try:
            import onnxruntime.training.orttrainer
        except ModuleNotFoundError as error:
            print(error)

        onward.compat.uninstall()
        onward.compat.uninstall()
        assert not hasattr(onnxruntime, "training")
        try:
            import onnxruntime.training
        except ModuleNotFoundError as error:
            print(error)
        assert onward.training.artifacts is artifacts
    """
    assert ran(code).splitlines() == [
        "No module named 'onnxruntime.training.orttrainer'",
        "No module named 'onnxruntime.training'",
    ]


def test_find_spec_answers_for_present_and_missing_modules() -> None:
    code = """
        from importlib.util import find_spec
        import onward.compat
        onward.compat.install()
        for part in ("", ".api", ".artifacts", ".ortmodule", ".nothing", ".api.nothing"):
            print(find_spec(f"onnxruntime.training{part}") is not None)
    """
    assert ran(code).split() == ["True", "True", "True", "True", "False", "False"]


def test_installing_loads_nothing() -> None:
    code = """
        import sys
        import onward.compat
        onward.compat.install()
        print(*{name.split(".")[0] for name in sys.modules})
    """
    assert not {"numpy", "onnx", "onnxruntime", "torch"} & set(ran(code).split())


def test_the_real_package_is_kept_unless_forced(tmp_path: Path) -> None:
    code = """
        import sys
        import onward.compat
        try:
            onward.compat.install()
        except onward.OnwardError as error:
            print(error)
        assert "onnxruntime" not in sys.modules  # to look is not to load

        import onnxruntime.training.api as real
        onward.compat.install(force=True)
        import onnxruntime.training.api
        assert onnxruntime.training.api.__name__ == "onward.training.api"
        onward.compat.uninstall()
        import onnxruntime.training.api
        assert onnxruntime.training.api is real and real.real
    """
    output = ran(code, with_files(tmp_path, list(REAL)))
    where = tmp_path / "onnxruntime" / "training"
    assert output.splitlines() == [
        f"onnxruntime.training is installed already: {where}",
        "import onward.training by its own name, or put it in place of the other: "
        "onward.compat.install(force=True)",
    ]


@pytest.mark.parametrize("files", [[], ["onnxruntime/training/__init__.py"]])
def test_an_empty_package_is_not_the_real_one(tmp_path: Path, files: list[str]) -> None:
    code = """
        import onward.compat
        onward.compat.install()
        import onnxruntime.training
        print(onnxruntime.training.__name__)
    """
    (tmp_path / "onnxruntime" / "training").mkdir(parents=True)
    folder = with_files(tmp_path, ["onnxruntime/__init__.py", *files])
    assert ran(code, folder) == "onward.training\n"


# -- the runtime itself ------------------------------------------------------------------------

SCRIPT = """
import pickle
import sys

import neighbour
import numpy as np
import onnx.parser
import onnxruntime as ort
import onnxruntime.quantization
from onnxruntime import *
from onnxruntime.training import artifacts


class Own:
    pass


def main():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    ).SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = InferenceSession(model, options, providers=["ReferenceExecutionProvider"])
    print(session.run(None, {"x": np.ones(1, np.float32)})[0], session.get_providers())
    print(InferenceSession.__module__, artifacts.__name__, ort.SparseTensor.__module__)
    pickle.loads(pickle.dumps(Own()))
    print(sys.argv[1:], neighbour.here, sys.path[0] == sys.argv[0].rpartition("/")[0])
    sys.exit(3)


if __name__ == "__main__":
    main()
"""


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = str(Path(__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "onward.compat", *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize("how", ["script", "module"])
def test_an_unchanged_script_runs_on_onward(tmp_path: Path, how: str) -> None:
    (tmp_path / "its").mkdir()
    (tmp_path / "its" / "script.py").write_text(SCRIPT)
    (tmp_path / "its" / "neighbour.py").write_text("here = True")
    if how == "script":
        done = command(str(tmp_path / "its" / "script.py"), "--a", "1", cwd=tmp_path)
    else:
        done = command("-m", "script", "--a", "1", cwd=tmp_path / "its")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [
        "[-1.] ['ReferenceExecutionProvider']",
        "onward.sessions.inference onward.training.artifacts "
        "onnxruntime.capi.onnxruntime_inference_collection",
        "['--a', '1'] True True",
    ]


def test_a_folder_with_a_main_module_runs(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import part; print(part.name, __name__)")
    (tmp_path / "app" / "part.py").write_text(
        "import onnxruntime; name = onnxruntime.SessionOptions"
    )
    assert command("app", cwd=tmp_path).stdout.split()[-1] == "__main__"


def test_a_failing_script_fails(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import onnxruntime\nraise ValueError('its own')")
    done = command("bad.py", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: its own\n")
    missing = command("missing.py", cwd=tmp_path)
    assert missing.returncode == 2 and "can't open file 'missing.py'" in missing.stderr


@pytest.mark.parametrize(("words", "code"), [([], 2), (["-m"], 2), (["--help"], 0)])
def test_the_command_prints_its_usage(words: list[str], code: int, tmp_path: Path) -> None:
    done = command(*words, cwd=tmp_path)
    assert done.returncode == code
    assert "usage: python -m onward.compat script.py" in (done.stdout if code == 0 else done.stderr)


def test_uninstall_restores_the_runtime() -> None:
    code = """
        import onnxruntime as real
        import onward.compat
        onward.compat.install(runtime=True)
        onward.compat.install(runtime=True)
        import onnxruntime
        import onnxruntime.quantization
        assert onnxruntime is not real and onnxruntime.__version__ == real.__version__
        assert onnxruntime.InferenceSession is onward.InferenceSession
        assert onnxruntime.get_available_providers is onward.get_available_providers
        onward.compat.uninstall()
        import onnxruntime, onnxruntime.quantization
        assert onnxruntime is real and onnxruntime.quantization.quantize_dynamic
    """
    ran(code)


def test_our_modules_import_the_real_onnxruntime() -> None:
    package = Path(compat.__file__).parent
    users = {
        f"onward.{'.'.join(path.relative_to(package).with_suffix('').parts)}"
        for path in package.rglob("*.py")
        if re.search(
            r"^(import onnxruntime|from onnxruntime import)", path.read_text("utf-8"), re.M
        )
    }
    assert users == set(compat._USERS)


@pytest.mark.integration
def test_ortmodules_names_are_onwards() -> None:
    code = """
        import onward.compat
        onward.compat.install()

        from onnxruntime.training import ORTModule, ortmodule
        from onnxruntime.training.ortmodule import DebugOptions, LogLevel, _fallback, _io, _utils
        from onnxruntime.training.ortmodule._custom_autograd_function import (
            enable_custom_autograd_support,
        )
        from onnxruntime.training.ortmodule._custom_gradient_registry import register_gradient
        from onnxruntime.training.ortmodule._graph_execution_manager_factory import (
            GraphExecutionManagerFactory,
        )
        from onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule import (
            HierarchicalORTModule,
        )
        from onnxruntime.training.ortmodule.experimental.json_config import load_from_json
        from onnxruntime.training.ortmodule.options import _SkipCheck
        from onnxruntime.training.ortmodule.torch_cpp_extensions import is_installed

        import onward.training.ortmodule as ours
        assert ortmodule is ours and ORTModule is ours.ORTModule
        assert issubclass(HierarchicalORTModule, ORTModule)
        assert is_installed(ortmodule.ORTMODULE_TORCH_CPP_DIR)
        assert _fallback._FallbackPolicy.FALLBACK_UNSUPPORTED_DATA in (
            ortmodule.ORTMODULE_FALLBACK_POLICY
        )
        assert set(dir(ortmodule)) <= {name for name in dir(ortmodule) if hasattr(ortmodule, name)}
    """
    assert ran(code) == ""


@pytest.mark.integration
def test_torch_orts_names_are_onwards() -> None:
    code = """
        import onward.compat
        onward.compat.install()

        from torch_ort import DebugOptions, LogLevel, ORTModule
        from torch_ort.optim import FusedAdam

        import onward.training as ours
        assert ORTModule is ours.ORTModule and FusedAdam is ours.optim.FusedAdam
        onward.compat.uninstall()
        try:
            import torch_ort
        except ModuleNotFoundError:
            print("gone")
    """
    assert ran(code) == "gone\n"


def test_the_extensions_need_no_build() -> None:
    module = "onnxruntime.training.ortmodule.torch_cpp_extensions.install"
    command = [sys.executable, "-m", "onward.compat", "-m", module]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "Onward has no C++ extensions: nothing needs to be built.\n"
