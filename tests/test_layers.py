"""The walls of the house: who may import whom, read from the source of every module.

The law is docs/design/0013-layers.md. `violations` takes sources as a value, so that the tests
below can show it a house that breaks each rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up. Names on one floor never import each other.
FLOORS = [
    {"errors", "lazy", "names"},
    {"settings"},
    {"graph"},
    {"passes", "checkpoints"},
    {"gradients", "losses", "optimizers"},
    {"programs"},
    {"providers"},
    {"workers"},
    {"measure.machine", "measure.memory", "measure.tuning"},
    {"sessions"},
    {"measure"},
    {"pytorch", "runner", "compress", "serve", "signing"},
    {"training", "distributed"},
    {"testing", "compat"},
    {"cli"},
    {"__init__", "__main__"},
]

# Packages from outside, and the only places that may import them.
ONLY_IN = {
    "torch": ["providers.torch", "pytorch", "distributed"],
    "onnxruntime": ["providers.ort", "compress.quantize"],
    "onnxscript": ["providers.torch", "pytorch"],
    "openvino": ["providers.openvino"],
    "model_signing": ["signing"],
    "typer": ["cli"],
    "rich": ["cli"],
    "grpc": ["serve"],
    "starlette": ["serve"],
    "uvicorn": ["serve"],
}

# The only packages that may be imported inside a function: an installation may lack them.
OPTIONAL = {
    "torch",
    "openvino",
    "PIL",
    "model_signing",
    "cryptography",
    "grpc",
    "starlette",
    "uvicorn",
}

BY_STRING = {"import_module", "LazyModule"}  # functions that import what a string names

NAMELESS = {"utils", "helpers", "common", "misc"}
PEER_NAMES = ["training"]  # mirrors onnxruntime.training, which has a `utils`

Sources = dict[str, str]  # module name below `onward` -> source; "" is onward/__init__.py


@dataclass(frozen=True)
class Import:
    """One name that a module imports, and where it does."""

    name: str
    line: int
    inside_function: bool
    for_types: bool = False  # under `if TYPE_CHECKING`: it never runs


def test_the_house_keeps_its_walls() -> None:
    assert not violations(read_sources(ROOT / "onward"))


def test_the_house_is_not_empty() -> None:
    assert "graph.operator_table" in read_sources(ROOT / "onward")


def test_a_lower_floor_never_looks_up() -> None:
    sources = {"graph.files": "from onward.providers import ort", "providers.ort": ""}
    assert violations(sources) == ["graph.files:1 imports providers.ort, which is not below graph"]


def test_neighbours_on_one_floor_never_meet() -> None:
    sources = {"serve.http": "import onward.runner.loop", "runner.loop": ""}
    assert violations(sources) == ["serve.http:1 imports runner.loop, which is not below serve"]


def test_nobody_imports_the_front_door() -> None:
    sources = {"": "", "cli.main": "import onward"}
    assert violations(sources) == ["cli.main:1 imports __init__, which is not below cli"]


@pytest.mark.parametrize("call", ["importlib.import_module", "import_module", "LazyModule"])
def test_an_import_by_string_counts(call: str) -> None:
    source = f"def load():\n    return {call}('onward.cli.main')"
    sources = {"sessions.inference": source, "cli.main": ""}
    assert violations(sources) == [
        "sessions.inference:2 imports cli.main, which is not below sessions"
    ]
    [violation] = violations({"sessions.inference": f"torch = {call}('torch')"})
    assert "torch belongs to" in violation


def test_a_part_of_a_package_may_have_a_lower_floor() -> None:
    sources = {"measure.memory.budget": "import onward.sessions.plan", "sessions.plan": ""}
    assert violations(sources) == [
        "measure.memory.budget:1 imports sessions.plan, which is not below measure"
    ]
    sources = {"sessions.plan": "import onward.measure.memory.budget", "measure.memory.budget": ""}
    assert violations(sources) == []
    sources = {"measure.memory.budget": "import onward.measure.report", "measure.report": ""}
    assert violations(sources) != []


def test_a_new_room_needs_a_floor() -> None:
    assert violations({"attic.box": ""}) == ["attic has no floor: enter it in FLOORS"]


def test_files_form_no_circle() -> None:
    sources = {
        "graph.a": "from onward.graph.b import x",
        "graph.b": "from onward.graph import c",
        "graph.c": "from onward.graph.a import y",
    }
    [circle] = violations(sources)
    assert circle.startswith("a circle: graph.")
    assert {"graph.a", "graph.b", "graph.c"} <= set(circle.split())


@pytest.mark.parametrize(
    ("module", "source", "law"),
    [
        ("sessions.inference", "import torch", "torch belongs to providers.torch, pytorch, distr"),
        ("graph.files", "from torch.onnx import ops", "torch belongs to providers.torch"),
        ("sessions.inference", "import onnxruntime as ort", "onnxruntime belongs to providers.ort"),
        ("providers.orthogonal", "import onnxruntime", "onnxruntime belongs to providers.ort"),
        ("graph.builder", "import onnxscript", "onnxscript belongs to providers.torch"),
        ("sessions.inference", "from rich.table import Table", "rich belongs to cli"),
        ("runner.loop", "import typer", "typer belongs to cli"),
        ("cli.serve", "import uvicorn", "uvicorn belongs to serve"),
    ],
)
def test_outside_packages_stay_in_their_rooms(module: str, source: str, law: str) -> None:
    [violation] = violations({module: source})
    assert f"{module}:1" in violation and law in violation


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("providers.torch.lower", "import torch"),
        ("providers.ort", "import onnxruntime"),
        ("providers.ort.binding", "import onnxruntime"),
        ("providers.torch.provider", "def load():\n    import torch"),
        ("sessions.inference", "import numpy\nimport onnx_ir"),
    ],
)
def test_outside_packages_are_welcome_in_their_rooms(module: str, source: str) -> None:
    assert violations({module: source}) == []


def test_functions_import_optional_packages_only() -> None:
    source = "def f():\n    from onward.graph import table\n\nasync def g():\n    import numpy"
    assert violations({"passes.fold": source, "graph.table": ""}) == [
        "passes.fold:2 imports onward.graph.table inside a function: move it to the top",
        "passes.fold:5 imports numpy inside a function: move it to the top",
    ]


@pytest.mark.parametrize("name", sorted(NAMELESS))
def test_a_module_says_what_it_is_for(name: str) -> None:
    assert violations({f"graph.{name}": ""}) == [f"graph.{name} says nothing: name what it does"]
    assert violations({f"graph.{name}.shapes": ""})
    assert violations({"training.utils": ""}) == []


def test_a_package_loads_nothing_by_itself() -> None:
    sources = {"graph.__init__": "from onward.graph.table import OpTable", "graph.table": ""}
    assert violations(sources) == ["graph.__init__:1 imports something: a package loads nothing"]


def test_a_package_may_have_names_that_load_when_they_are_used() -> None:
    shown = "if TYPE_CHECKING:\n    from onward.graph.table import OpTable"
    source = f"from importlib import import_module\nfrom typing import TYPE_CHECKING\n{shown}"
    assert violations({"graph.__init__": source, "graph.table": ""}) == []


def test_a_package_is_not_the_front_door() -> None:
    assert violations({"": "", "graph.__init__": "", "passes.fold": "import onward.graph"}) == []


def test_absolute_names_only() -> None:
    assert violations({"graph.files": "from . import table"}) == [
        "graph.files:1 imports by a relative name: write it out"
    ]


def read_sources(package: Path) -> Sources:
    """Every module of a package; a subpackage's own file is called `name.__init__`."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        sources["" if parts == ("__init__",) else ".".join(parts)] = path.read_text("utf-8")
    return sources


def violations(sources: Sources) -> list[str]:
    """Every broken rule, as one line each."""
    found = [*_unknown_rooms(sources), *_nameless(sources)]
    edges: dict[str, set[str]] = {}
    for module, source in sources.items():
        imports = list(_imports(source))
        edges[module] = {
            target for entry in imports if (target := _resolve(entry.name, sources)) is not None
        }
        for entry in imports:
            where = f"{module or '__init__'}:{entry.line}"
            found += [f"{where} {law}" for law in _broken_by(module, entry, sources)]
    return found + _circles(edges)


def _broken_by(module: str, entry: Import, sources: Sources) -> Iterator[str]:
    package = entry.name.split(".")[0]
    if entry.name.startswith("."):
        yield "imports by a relative name: write it out"
        return
    lazy = entry.for_types or package in {"importlib", "typing"}  # names that load when used
    if module.endswith(".__init__") and not lazy:
        yield "imports something: a package loads nothing"
        return
    target = _resolve(entry.name, sources)
    if target is not None and not _may_import(module, target):
        yield f"imports {target or '__init__'}, which is not below {_room(module)}"
    rooms = ONLY_IN.get(package)
    if rooms is not None and not any(_within(module, room) for room in rooms):
        yield f"imports {package}, but {package} belongs to {', '.join(rooms)}"
    if entry.inside_function and package not in OPTIONAL:
        yield f"imports {entry.name} inside a function: move it to the top"


def _imports(source: str) -> Iterator[Import]:
    """The imports of a module, those by string included, which may stand in a function."""

    def walk(node: ast.AST, inside: bool, types: bool = False) -> Iterator[Import]:
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        types = types or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    for alias in names:
                        yield Import(alias.name, child.lineno, inside, types)
                case ast.ImportFrom(module="__future__"):
                    pass
                case ast.ImportFrom(module=name, names=names, level=level):
                    start = "." * level + (name or "")
                    for alias in names:
                        yield Import(f"{start}.{alias.name}", child.lineno, inside, types)
                case ast.Call(
                    func=ast.Name(id=function) | ast.Attribute(attr=function),
                    args=[ast.Constant(value=str(name)), *_],
                ) if function in BY_STRING:
                    yield Import(name, child.lineno, inside_function=False)
            yield from walk(child, inside, types)

    yield from walk(ast.parse(source), inside=False)


def _resolve(name: str, sources: Sources) -> str | None:
    """The module that an imported name lies in, or None for a package from outside."""
    package, _, rest = name.partition(".")
    if package != "onward":
        return None
    while rest:
        for module in (rest, f"{rest}.__init__"):
            if module in sources:
                return module
        rest = rest.rpartition(".")[0]
    return rest


def _room(module: str) -> str:
    return module.split(".")[0] or "__init__"


def _within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def _floor(module: str) -> int | None:
    """The floor of a module: the one of the longest name in FLOORS that it lies within."""
    entries = [(name, i) for i, rooms in enumerate(FLOORS) for name in rooms]
    within = [(len(name), i) for name, i in entries if _within(module or "__init__", name)]
    return max(within)[1] if within else None


def _may_import(module: str, target: str) -> bool:
    above, below = _floor(module), _floor(target)
    if _room(module) == _room(target):
        return above is None or below is None or below <= above
    return above is None or below is None or below < above


def _unknown_rooms(sources: Sources) -> list[str]:
    rooms = sorted({_room(module) for module in sources if _floor(module) is None})
    return [f"{room} has no floor: enter it in FLOORS" for room in rooms]


def _nameless(sources: Sources) -> list[str]:
    return [
        f"{module} says nothing: name what it does"
        for module in sources
        if NAMELESS & set(module.split(".")) and _room(module) not in PEER_NAMES
    ]


def _circles(edges: dict[str, set[str]]) -> list[str]:
    others = {module: targets - {module} for module, targets in edges.items()}
    try:
        TopologicalSorter(others).prepare()
    except CycleError as error:
        return ["a circle: " + " -> ".join(error.args[1])]
    return []
