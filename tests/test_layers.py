"""The layers of the package: which module may import which, read from every module's source.

The rules are in docs/design/0013-layers.md. `violations` takes the sources as a value, so that the
tests below can pass it sources that break each rule.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Lowest first. Packages in one layer never import each other.
LAYERS = [
    {"errors", "formatting", "lazy", "message_text"},
    {"settings", "quantities"},
    {"graph"},
    {"passes", "checkpoints", "configs", "python_code"},
    {"gradients", "losses", "optimizers"},
    {"programs"},
    {"providers"},
    {"workers"},
    {"measure.machine", "measure.memory", "measure.tuning"},
    {"sessions"},
    {"measure"},
    {"pytorch", "runner", "serving", "signing"},
    {"compress"},
    {"training", "distributed"},
    {"testing", "compat"},
    {"cli"},
    {"__init__", "__main__"},
]

# Third-party packages, and the only packages of ours that may import them.
ONLY_IN = {
    "torch": ["providers.torch", "pytorch", "distributed"],
    "transformers": ["pytorch.huggingface_folder"],
    "onnxruntime": ["providers.ort", "compress.quantization", "compress.edge"],
    "onnxscript": ["providers.torch", "pytorch"],
    "openvino": ["providers.openvino"],
    "mpi4py": ["distributed"],
    "ray": ["distributed"],
    "model_signing": ["signing"],
    "typer": ["cli"],
    "rich": ["cli"],
    "grpc": ["serving"],
    "starlette": ["serving"],
    "uvicorn": ["serving"],
    "httptools": ["serving"],
    "orjson": ["serving"],
    "prometheus_client": ["serving"],
    "watchfiles": ["serving"],
    "opentelemetry": ["serving"],
}

# The only packages that may be imported inside a function: an installation may lack them.
OPTIONAL = {
    "torch",
    "transformers",
    "openvino",
    "PIL",
    "pyarrow",
    "yaml",
    "tensorboard",
    "mlflow",
    "wandb",
    "trackio",
    "optuna",
    "flwr",
    "model_signing",
    "cryptography",
    "grpc",
    "starlette",
    "uvicorn",
    "opentelemetry",
    "uvloop",
    "tokenizers",
    "mpi4py",
    "ray",
}

# Imports by string of a higher layer: a lower layer's public name opens the higher one when it is
# called (docs/design/0013-layers.md, "Front doors").
FRONT_DOORS = {
    ("sessions.training.session", "onward.pytorch.torch_session"),
    ("sessions.training.session", "onward.distributed.open_distributed"),
    ("runner.train", "onward.distributed.join_team"),
    ("runner.run_checkpoints", "onward.distributed.checkpoints.sharded_states"),
    ("serving.processing.stored_processing", "onward.runner.plan.preprocessing"),
}

BY_STRING = {"import_module", "LazyModule"}  # functions that import what a string names

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}  # of os
# Modules below the command line that may read the environment: the peer's users set ORTMODULE_*
# outside their scripts, which run unchanged under onward.compat; launchers tell a process its rank
# only in variables.
READ_ENVIRONMENT = {
    "training.ortmodule.switches",
    "distributed.join_team",
    "distributed.process_groups",
}

VAGUE = {"utils", "helpers", "common", "misc"}
PEER_NAMES = ["training"]  # mirrors onnxruntime.training, which has a `utils`

Sources = dict[str, str]  # module name below `onward` -> source; "" is onward/__init__.py


@dataclass(frozen=True)
class Import:
    """One name that a module imports, and where it does."""

    name: str
    line: int
    inside_function: bool
    for_types: bool = False  # under `if TYPE_CHECKING`: it never runs


def test_the_package_keeps_its_layers() -> None:
    assert not violations(read_sources(ROOT / "onward"))


def test_no_environment_variable_is_read_below_the_command_line() -> None:
    sources = read_sources(ROOT / "onward")
    assert not [
        found
        for module, source in sources.items()
        if module.split(".")[0] != "cli" and module not in READ_ENVIRONMENT
        for found in environment_reads(module, source)
    ]
    assert environment_reads("cli.main", sources["cli.main"])  # NO_COLOR


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os as system\nsystem.getenv('A')",
        "import os\nos.environb.get(b'A')",
        "from os import path, environ",
        "from os import getenv as read",
    ],
)
def test_reads_of_the_environment_are_found(source: str) -> None:
    line = 1 + source.count("\n")
    assert environment_reads("graph.files", source) == [f"graph.files:{line} reads the environment"]


def test_the_sources_are_found() -> None:
    assert "graph.operator_table" in read_sources(ROOT / "onward")


def test_a_lower_layer_imports_no_higher_one() -> None:
    sources = {"graph.files": "from onward.providers import ort", "providers.ort": ""}
    assert violations(sources) == ["graph.files:1 imports providers.ort, which is not below graph"]


def test_packages_in_one_layer_import_no_other() -> None:
    sources = {"serving.http": "import onward.runner.loop", "runner.loop": ""}
    assert violations(sources) == ["serving.http:1 imports runner.loop, which is not below serving"]


def test_no_module_imports_onward_itself() -> None:
    sources = {"": "", "cli.main": "import onward"}
    assert violations(sources) == ["cli.main:1 imports __init__, which is not below cli"]


@pytest.mark.parametrize("call", ["importlib.import_module", "import_module", "LazyModule"])
def test_an_import_by_string_is_an_import(call: str) -> None:
    source = f"def load():\n    return {call}('onward.cli.main')"
    sources = {"sessions.inference": source, "cli.main": ""}
    assert violations(sources) == [
        "sessions.inference:2 imports cli.main, which is not below sessions"
    ]
    [violation] = violations({"sessions.inference": f"torch = {call}('torch')"})
    assert "torch belongs to" in violation


def test_a_front_door_names_one_higher_module() -> None:
    source = "door = LazyModule('onward.pytorch.torch_session')"
    sources = {"sessions.training.session": source, "pytorch.torch_session": ""}
    assert violations(sources) == []
    assert violations({"sessions.inference": source, "pytorch.torch_session": ""}) != []


def test_front_doors_are_imports_by_string() -> None:
    sources = read_sources(ROOT / "onward")
    for module, target in FRONT_DOORS:
        [entry] = [entry for entry in _imports(sources[module]) if entry.name == target]
        assert f'LazyModule("{target}")' in sources[module].splitlines()[entry.line - 1]


def test_a_subpackage_may_have_a_lower_layer() -> None:
    sources = {"measure.memory.budget": "import onward.sessions.plan", "sessions.plan": ""}
    assert violations(sources) == [
        "measure.memory.budget:1 imports sessions.plan, which is not below measure"
    ]
    sources = {"sessions.plan": "import onward.measure.memory.budget", "measure.memory.budget": ""}
    assert violations(sources) == []
    sources = {"measure.memory.budget": "import onward.measure.report", "measure.report": ""}
    assert violations(sources) != []


def test_a_new_package_needs_a_layer() -> None:
    assert violations({"audio.wave": ""}) == ["audio has no layer: add it to LAYERS"]


def test_modules_form_no_import_cycle() -> None:
    sources = {
        "graph.a": "from onward.graph.b import x",
        "graph.b": "from onward.graph import c",
        "graph.c": "from onward.graph.a import y",
    }
    [cycle] = violations(sources)
    assert cycle.startswith("import cycle: graph.")
    assert {"graph.a", "graph.b", "graph.c"} <= set(cycle.split())


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("sessions.inference", "import torch", "torch belongs to providers.torch, pytorch, distr"),
        ("graph.files", "from torch.onnx import ops", "torch belongs to providers.torch"),
        ("sessions.inference", "import onnxruntime as ort", "onnxruntime belongs to providers.ort"),
        ("providers.orthogonal", "import onnxruntime", "onnxruntime belongs to providers.ort"),
        ("graph.builder", "import onnxscript", "onnxscript belongs to providers.torch"),
        ("sessions.inference", "from rich.table import Table", "rich belongs to cli"),
        ("runner.loop", "import typer", "typer belongs to cli"),
        ("cli.serve", "import uvicorn", "uvicorn belongs to serving"),
    ],
)
def test_third_party_packages_are_imported_in_their_place_only(
    module: str, source: str, rule: str
) -> None:
    [violation] = violations({module: source})
    assert f"{module}:1" in violation and rule in violation


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
def test_third_party_packages_are_imported_in_their_place(module: str, source: str) -> None:
    assert violations({module: source}) == []


def test_functions_import_optional_packages_only() -> None:
    source = "def f():\n    from onward.graph import table\n\nasync def g():\n    import numpy"
    assert violations({"passes.fold": source, "graph.table": ""}) == [
        "passes.fold:2 imports onward.graph.table inside a function: move it to the top",
        "passes.fold:5 imports numpy inside a function: move it to the top",
    ]


@pytest.mark.parametrize("name", sorted(VAGUE))
def test_a_vague_module_name_is_refused(name: str) -> None:
    assert violations({f"graph.{name}": ""}) == [
        f"graph.{name} is too vague a name: say what it does"
    ]
    assert violations({f"graph.{name}.shapes": ""})
    assert violations({"training.utils": ""}) == []


def test_a_package_init_imports_nothing() -> None:
    sources = {"graph.__init__": "from onward.graph.table import OpTable", "graph.table": ""}
    assert violations(sources) == [
        "graph.__init__:1 imports something: an __init__ imports nothing"
    ]


def test_a_package_may_have_lazy_names() -> None:
    shown = "if TYPE_CHECKING:\n    from onward.graph.table import OpTable"
    source = f"from importlib import import_module\nfrom typing import TYPE_CHECKING\n{shown}"
    assert violations({"graph.__init__": source, "graph.table": ""}) == []


def test_a_package_may_be_imported_as_a_whole() -> None:
    assert violations({"": "", "graph.__init__": "", "passes.fold": "import onward.graph"}) == []


def test_absolute_names_only() -> None:
    assert violations({"graph.files": "from . import table"}) == [
        "graph.files:1 has a relative import: write it out"
    ]


@functools.cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


def read_sources(package: Path) -> Sources:
    """Every module of a package; a subpackage's own file is called `name.__init__`."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        sources["" if parts == ("__init__",) else ".".join(parts)] = path.read_text("utf-8")
    return sources


def environment_reads(module: str, source: str) -> list[str]:
    """Where a module reads environment variables: os.environ, os.getenv."""
    found: list[str] = []
    if not any(name in source for name in ENVIRONMENT):
        return found  # most modules: reading their trees takes seconds
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Attribute):
            names = {node.attr}
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
        else:
            continue
        if names & ENVIRONMENT:
            found.append(f"{module}:{node.lineno} reads the environment")
    return found


def violations(sources: Sources) -> list[str]:
    """Every broken rule, as one line each."""
    found = [*_without_layer(sources), *_vague_names(sources)]
    edges: dict[str, set[str]] = {}
    for module, source in sources.items():
        imports = [e for e in _imports(source) if (module, e.name) not in FRONT_DOORS]
        edges[module] = {
            target for entry in imports if (target := _resolve(entry.name, sources)) is not None
        }
        for entry in imports:
            where = f"{module or '__init__'}:{entry.line}"
            found += [f"{where} {rule}" for rule in _broken_by(module, entry, sources)]
    return found + _cycles(edges)


def _broken_by(module: str, entry: Import, sources: Sources) -> Iterator[str]:
    package = entry.name.split(".")[0]
    if entry.name.startswith("."):
        yield "has a relative import: write it out"
        return
    lazy = entry.for_types or package in {"importlib", "typing"}  # names that load when used
    if module.endswith(".__init__") and not lazy:
        yield "imports something: an __init__ imports nothing"
        return
    target = _resolve(entry.name, sources)
    if target is not None and not _may_import(module, target):
        yield f"imports {target or '__init__'}, which is not below {_package(module)}"
    places = ONLY_IN.get(package)
    if places is not None and not any(_within(module, place) for place in places):
        yield f"imports {package}, but {package} belongs to {', '.join(places)}"
    if entry.inside_function and package not in OPTIONAL:
        yield f"imports {entry.name} inside a function: move it to the top"


def _imports(source: str) -> Iterator[Import]:
    """The imports of a module, including imports by string, which a function may contain."""

    by_string = any(name in source for name in BY_STRING)
    statements = (ast.stmt, ast.excepthandler, ast.match_case)

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
            if by_string or isinstance(child, statements):  # expressions have no other import
                yield from walk(child, inside, types)

    yield from walk(parse(source), inside=False)


def _resolve(name: str, sources: Sources) -> str | None:
    """The module that an imported name is in, or None for a third-party package."""
    package, _, rest = name.partition(".")
    if package != "onward":
        return None
    while rest:
        for module in (rest, f"{rest}.__init__"):
            if module in sources:
                return module
        rest = rest.rpartition(".")[0]
    return rest


def _package(module: str) -> str:
    return module.split(".")[0] or "__init__"


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _layer(module: str) -> int | None:
    """The layer of a module: that of the longest name in LAYERS which contains it."""
    entries = [(name, i) for i, names in enumerate(LAYERS) for name in names]
    within = [(len(name), i) for name, i in entries if _within(module or "__init__", name)]
    return max(within)[1] if within else None


def _may_import(module: str, target: str) -> bool:
    above, below = _layer(module), _layer(target)
    if above is None or below is None:
        return True
    return below <= above if _package(module) == _package(target) else below < above


def _without_layer(sources: Sources) -> list[str]:
    packages = sorted({_package(module) for module in sources if _layer(module) is None})
    return [f"{package} has no layer: add it to LAYERS" for package in packages]


def _vague_names(sources: Sources) -> list[str]:
    return [
        f"{module} is too vague a name: say what it does"
        for module in sources
        if VAGUE & set(module.split(".")) and _package(module) not in PEER_NAMES
    ]


def _cycles(edges: dict[str, set[str]]) -> list[str]:
    others = {module: targets - {module} for module, targets in edges.items()}
    try:
        TopologicalSorter(others).prepare()
    except CycleError as error:
        return ["import cycle: " + " -> ".join(error.args[1])]
    return []
