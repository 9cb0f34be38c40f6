"""One name, one thing: modules and classes of the package, read from its source.

`repeated_modules` and `repeated_classes` take the sources as a value, so that the tests below can
pass them sources that break each rule.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent

# Folders whose modules may have the names of modules elsewhere, and why.
PARALLEL = {
    "onward/cli": "a verb per file, named as the module that it calls",
    "onward/compress/pruning/rules": "rules by family of operators",
    "onward/gradients/rules": "rules by family of operators",
    "onward/passes/fuse": "fusions by family of operators",
    "onward/providers/torch/kernels": "kernels by family of operators",
    "onward/providers/openvino": "the same parts for each engine",
    "onward/providers/ort": "the same parts for each engine",
    "onward/providers/ort/training": "the same parts for each engine",
    "onward/providers/torch": "the same parts for each engine",
    "onward/providers/torch/training": "the same parts for each engine",
    "onward/compress/quantization/half": "the same parts for each format",
    "onward/compress/quantization/int8": "the same parts for each format",
    "onward/compress/quantization/weights": "the same parts for each format",
    "onward/training/api": "modules of onnxruntime.training.api",
    "onward/training/onnxblock": "modules of onnxruntime.training.onnxblock",
    "onward/training/ortmodule": "modules of onnxruntime.training.ortmodule",
}

# Class names that two modules define, and why.
EXCEPTIONS = {
    "AdamW": "torch's name, and onnxruntime.training.onnxblock's",
    "Constant": "a schedule (torch's ConstantLR), and a block of onnxruntime.training.onnxblock",
    "Cosine": "users write losses.Cosine and optimizers.Cosine: a loss and a schedule",
    "Linear": "a schedule (torch's LinearLR), and a block of onnxruntime.training.onnxblock",
    "Module": "onward.Module wraps torch's; onnxruntime.training.api has the other",
    "Optimizer": "the protocol that users implement; onnxruntime.training.api has the other",
    "SGD": "torch's name, and onnxruntime.training.onnxblock's",
}


@functools.cache
def sources() -> dict[str, str]:
    """The text of each module by its path."""
    files = sorted((ROOT / "onward").rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def repeated_modules(paths: Iterable[str]) -> dict[str, list[str]]:
    """Base names that three or more modules have outside of the parallel folders."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in map(PurePosixPath, paths):
        if not path.stem.startswith("__") and path.parent.as_posix() not in PARALLEL:
            found[path.stem].append(str(path))
    return {name: where for name, where in found.items() if len(where) >= 3}


def repeated_classes(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Public class names that two or more modules define."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: where for name, where in found.items() if len(where) >= 2}


def test_no_module_name_three_times() -> None:
    assert repeated_modules(sources()) == {}, "rename one, or list its folder in PARALLEL"


@pytest.mark.integration
def test_no_class_name_twice() -> None:
    found = repeated_classes(sources())
    new = {name: where for name, where in found.items() if name not in EXCEPTIONS}
    assert new == {}, "rename one: its name should say what it is in any file"


def test_every_exception_is_needed() -> None:
    twice = repeated_classes(sources())
    assert {name: len(where) for name, where in twice.items()} == dict.fromkeys(EXCEPTIONS, 2)
    assert all((ROOT / folder).is_dir() for folder in PARALLEL)


@pytest.mark.parametrize(
    ("folders", "is_repeated"),
    [
        (["onward/graph", "onward/passes"], False),
        (["onward/graph", "onward/passes", "onward/serving"], True),
        (["onward/graph", "onward/passes", "onward/cli", "onward/gradients/rules"], False),
        (["onward/graph", "onward/passes", "onward/providers/ort/rewrites"], True),
    ],
)
def test_modules_in_parallel_folders_do_not_count(folders: list[str], is_repeated: bool) -> None:
    paths = [f"{folder}/norm.py" for folder in folders]
    assert repeated_modules(paths) == ({"norm": paths} if is_repeated else {})


def test_private_and_nested_classes_do_not_count() -> None:
    text = "class _Row: ...\nclass Table:\n    class Cell: ...\n"
    assert repeated_classes({"a.py": text, "b.py": text}) == {"Table": ["a.py", "b.py"]}
