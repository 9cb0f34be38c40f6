"""Where an optional package is missing, tests that need it are skipped by its name, no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MISSING = "torch openvino onnxscript PIL pyarrow model_signing cryptography OpenSSL mkdocs material"
FILES = {
    "test_whole_file.py": "import no_wrapper\ndef test_a(): pass\n",
    "test_again.py": "from no_wrapper import thing\ndef test_a(): pass\n",
    "no_wrapper.py": "raise ModuleNotFoundError('no openvino', name='openvino.runtime')\n",
    "test_one.py": """
def test_plain(): pass
def test_needy(): raise ModuleNotFoundError("no torch", name="torch")
def test_advised(): raise RuntimeError("not here\\ninstall it with: pip install onward[torch]")
def test_text(): assert not "install it with: pip install onward[torch]"
def test_broken(): raise ModuleNotFoundError("no numpy", name="numpy")
""",
    "test_providers.py": """
import pytest
@pytest.mark.parametrize("names", [
    ["OpenVINOExecutionProvider"],
    ["CPUExecutionProvider", ("TorchExecutionProvider", {"device": "cpu"})],
    ["CPUExecutionProvider"],
    None,
])
def test_names(names): assert names in (None, ["CPUExecutionProvider"])
""",
    "test_required.py": "raise ModuleNotFoundError('no onnx', name='onnx')\n",
}

# Python imports this module at its start: no installed package of these names is found.
SITECUSTOMIZE = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec.__func__
def find_spec(cls, name, path=None, target=None):
    return None if name.split(".")[0] in {missing!r} else find(cls, name, path, target)
PathFinder.find_spec = classmethod(find_spec)
"""


@pytest.fixture
def without_packages(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has none of MISSING."""
    (tmp_path / "site").mkdir()
    text = SITECUSTOMIZE.format(missing=set(MISSING.split()))
    (tmp_path / "site/sitecustomize.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def test_tests_that_need_a_missing_package_are_skipped_by_name(
    tmp_path: Path, without_packages: dict[str, str]
) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    shutil.copy(ROOT / "conftest.py", folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rsfE", "--continue-on-collection-errors",
         "-p", "no:cacheprovider", "--import-mode=importlib"],
        cwd=folder, env=without_packages, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "openvino is not installed: pip install onward[openvino]" in done.stdout
    assert "torch is not installed: pip install onward[torch]" in done.stdout
    assert "FAILED test_one.py::test_broken" in done.stdout
    assert "FAILED test_one.py::test_text" in done.stdout
    assert "ERROR test_required.py" in done.stdout
    assert "2 failed, 3 passed, 6 skipped, 1 error" in done.stdout


@pytest.mark.slow  # it imports every module of the repository
def test_the_suite_is_collected_without_optional_packages(
    without_packages: dict[str, str],
) -> None:
    command = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=without_packages,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "error" not in done.stdout.splitlines()[-1]
