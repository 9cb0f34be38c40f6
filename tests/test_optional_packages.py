"""Where an optional package is missing, what needs it is skipped by its name; nothing else is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
FILES = {
    "test_whole_file.py": "import no_wrapper\ndef test_a(): pass\n",
    "test_again.py": "from no_wrapper import thing\ndef test_a(): pass\n",
    "no_wrapper.py": "raise ModuleNotFoundError('no openvino', name='openvino.runtime')\n",
    "test_one.py": """
def test_plain(): pass
def test_needy(): raise ModuleNotFoundError("no torch", name="torch")
def test_broken(): raise ModuleNotFoundError("no numpy", name="numpy")
""",
    "test_required.py": "raise ModuleNotFoundError('no onnx', name='onnx')\n",
}


def test_what_needs_a_missing_package_is_skipped_by_name(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rsfE", "--continue-on-collection-errors",
         "-p", "no:cacheprovider", "--import-mode=importlib"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "openvino is not installed: pip install onward[openvino]" in done.stdout
    assert "torch is not installed: pip install onward[torch]" in done.stdout
    assert "FAILED test_one.py::test_broken" in done.stdout
    assert "ERROR test_required.py" in done.stdout
    assert "1 failed, 1 passed, 3 skipped, 1 error" in done.stdout
