"""Compat: run code that imports onnxruntime, or onnxruntime.training, on Onward instead.

A whole script, as it is; both names are replaced while it runs:

    python -m onward.compat script.py --its --arguments
    python -m onward.compat -m package.module --its --arguments

Or from a program, before it imports them:

    import onward.compat
    onward.compat.install()              # onnxruntime.training is onward.training
    onward.compat.install(runtime=True)  # and onnxruntime has Onward's sessions and options

    from onnxruntime.training import artifacts          # onward.training.artifacts
    from onnxruntime.training.api import Module         # onward.training.api.Module
    import onnxruntime.training.onnxblock as onnxblock  # onward.training.onnxblock

`install()` loads nothing until it is imported, and both names are one module.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from onward.errors import OptionError

_RUNTIME = "onnxruntime"
_PEER, _OURS = "onnxruntime.training", "onward.training"
_PARTS = ("__init__.py", "api", "artifacts.py")  # what a real one has, and an empty one has not

# names of onnxruntime's that mean Onward's in a runtime that is replaced; the others are the same
_REPLACED = {
    "InferenceSession": ("onward.sessions.inference", "InferenceSession"),
    "SessionOptions": ("onward.providers.options", "SessionOptions"),
    "RunOptions": ("onward.providers.options", "RunOptions"),
    "GraphOptimizationLevel": ("onward.providers.options", "GraphOptimizationLevel"),
    "ExecutionMode": ("onward.providers.options", "ExecutionMode"),
    "ExecutionOrder": ("onward.providers.options", "ExecutionOrder"),
    "IOBinding": ("onward.sessions.io_binding", "IOBinding"),
    "get_available_providers": ("onward.providers.choose", "available"),
    "get_all_providers": ("onward.providers.choose", "all_provider_names"),
}
# whoever of us imports onnxruntime has to have the real one
_USERS = tuple(
    f"onward.providers.ort.{name}"
    for name in ("bound", "defects", "exports", "session", "shared", "values")
)
_USAGE = """usage: python -m onward.compat script.py [argument ...]
       python -m onward.compat -m module [argument ...]

Run a script or a module with onnxruntime and onnxruntime.training replaced by Onward."""


def install(*, runtime: bool = False, force: bool = False) -> None:
    """Let `onnxruntime.training` mean `onward.training` in this process.

    With `runtime`, `onnxruntime` itself has Onward's sessions and options for whoever imports it
    from now on. Where the real onnxruntime.training is installed, only with `force`; what has been
    imported of it stays with those who have it. Installing twice changes nothing.
    """
    _install_training(force)
    if runtime:
        _install_runtime()


def _install_training(force: bool) -> None:
    if _installed():
        return
    if not force and (where := _real()) is not None:
        raise OptionError(
            f"onnxruntime.training is installed already: {where}\n"
            "import onward.training by its own name, or put it in place of the other: "
            "onward.compat.install(force=True)"
        )
    sys.meta_path.insert(0, _Finder(_taken_out()))


def uninstall() -> None:
    """Undo `install`: imports from now on find what they found before."""
    replaced = sys.modules.get(_RUNTIME)
    if isinstance(replaced, _Runtime):
        sys.modules[_RUNTIME] = replaced.restored()
    for finder in _installed():
        sys.meta_path.remove(finder)
        _taken_out()
        _put_back(finder.displaced)


class _Runtime(ModuleType):
    """onnxruntime with Onward's sessions and options; `real` is the one that it stands for."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update(vars(real))
        self.real = real
        for name, (home, attribute) in _REPLACED.items():
            setattr(self, name, getattr(import_module(home), attribute))

    def restored(self) -> ModuleType:
        """The real one, with the submodules that were imported meanwhile."""
        for name, value in vars(self).items():
            if isinstance(value, ModuleType) and value.__name__ == f"{_RUNTIME}.{name}":
                setattr(self.real, name, value)
        return self.real


def _install_runtime() -> None:
    real = import_module(_RUNTIME)
    if isinstance(real, _Runtime):
        return
    for user in _USERS:
        import_module(user)
    sys.modules[_RUNTIME] = _Runtime(real)


class _Finder(MetaPathFinder):
    """Finds modules of ours by the peer's names."""

    def __init__(self, displaced: dict[str, ModuleType]) -> None:
        self.displaced = displaced  # modules of the real one

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_peers(fullname):
            return None
        ours = _OURS + fullname.removeprefix(_PEER)
        found = find_spec(ours)
        if found is None:  # those who only ask whether it is there get their answer
            return None
        package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(ours), origin=found.origin, is_package=package)


class _Loader(Loader):
    """Gives a module that has another name of its own, and leaves it as it is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # which the import has just replaced


def _installed() -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder)]


def _is_peers(name: str) -> bool:
    return name == _PEER or name.startswith(f"{_PEER}.")


def _real() -> str | None:
    """The folder of a real onnxruntime.training; none of it is loaded."""
    above = find_spec("onnxruntime")
    for place in above.submodule_search_locations or () if above is not None else ():
        folder = Path(place) / "training"
        if all((folder / part).exists() for part in _PARTS):
            return str(folder)
    return None


def _taken_out() -> dict[str, ModuleType]:
    """Forget the modules that have been imported by the peer's names; they are returned."""
    taken = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_peers(name)}
    above = sys.modules.get("onnxruntime")
    if above is not None and hasattr(above, "training"):
        del above.training
    return taken


def _put_back(modules: dict[str, ModuleType]) -> None:
    sys.modules.update(modules)
    if _PEER in modules and "onnxruntime" in sys.modules:
        sys.modules["onnxruntime"].training = modules[_PEER]  # type: ignore[attr-defined]


# -- python -m onward.compat -------------------------------------------------------------------


def run(arguments: Sequence[str]) -> None:
    """Run a script, or a module after `-m`, as python would, on Onward."""
    if list(arguments) in (["-h"], ["--help"]):
        print(_USAGE)
        return
    if not arguments or list(arguments) == ["-m"]:
        print(_USAGE, file=sys.stderr)
        sys.exit(2)
    install(runtime=True, force=True)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        _run_script(arguments[0])


def _run_script(path: str) -> None:
    if os.path.isdir(path):  # with a __main__.py
        runpy.run_path(path, run_name="__main__")
        return
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        print(f"python -m onward.compat: can't open file {path!r}: {error}", file=sys.stderr)
        sys.exit(2)
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins)
    sys.modules["__main__"] = main  # for pickle, and for whoever looks at the script's names
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":  # by its own name, so that there is one of it
    import_module("onward.compat").run(sys.argv[1:])
