"""onward.compat: the peer's names are ours. tests/training/test_scripts.py has whole scripts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


def test_the_peers_names_are_ours() -> None:
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
            import onnxruntime.training.ortmodule
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
        "No module named 'onnxruntime.training.ortmodule'",
        "No module named 'onnxruntime.training'",
    ]


def test_one_may_ask_what_is_there() -> None:
    code = """
        from importlib.util import find_spec
        import onward.compat
        onward.compat.install()
        for part in ("", ".api", ".artifacts", ".ortmodule", ".api.nothing"):
            print(find_spec(f"onnxruntime.training{part}") is not None)
    """
    assert ran(code).split() == ["True", "True", "True", "False", "False"]


def test_installing_loads_nothing() -> None:
    code = """
        import sys
        import onward.compat
        onward.compat.install()
        print(*{name.split(".")[0] for name in sys.modules})
    """
    assert not {"numpy", "onnx", "onnxruntime", "torch"} & set(ran(code).split())


def test_a_real_one_is_left_alone_unless_forced(tmp_path: Path) -> None:
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
    said = ran(code, with_files(tmp_path, list(REAL)))
    where = tmp_path / "onnxruntime" / "training"
    assert said.splitlines() == [
        f"onnxruntime.training is installed already: {where}",
        "import onward.training by its own name, or put it in place of the other: "
        "onward.compat.install(force=True)",
    ]


@pytest.mark.parametrize("files", [[], ["onnxruntime/training/__init__.py"]])
def test_an_empty_package_of_that_name_is_no_real_one(tmp_path: Path, files: list[str]) -> None:
    code = """
        import onward.compat
        onward.compat.install()
        import onnxruntime.training
        print(onnxruntime.training.__name__)
    """
    (tmp_path / "onnxruntime" / "training").mkdir(parents=True)
    folder = with_files(tmp_path, ["onnxruntime/__init__.py", *files])
    assert ran(code, folder) == "onward.training\n"
