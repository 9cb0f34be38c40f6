"""Run code that imports onnxruntime or onnxruntime.training on Onward instead.

An unchanged script; both names are replaced while it runs:

    python -m onward.compat script.py --its --arguments
    python -m onward.compat -m package.module --its --arguments

Or from a program, before it imports them:

    import onward.compat
    onward.compat.install()              # onnxruntime.training is onward.training
    onward.compat.install(runtime=True)  # and onnxruntime has Onward's sessions and options

    from onnxruntime.training import artifacts          # onward.training.artifacts
    from onnxruntime.training.api import Module         # onward.training.api.Module
    import onnxruntime.training.onnxblock as onnxblock  # onward.training.onnxblock

`install()` imports nothing until the code does, and both names are the same module.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

from onward.errors import OptionError

_RUNTIME = "onnxruntime"
_PEER = "onnxruntime.training"
_ALIASES = {  # the longest prefix first
    _PEER: "onward.training",
    "torch_ort.optim": "onward.training.optim",
    "torch_ort": "onward.training.ortmodule",  # a package that renamed ORTModule
}
_PARTS = (
    "__init__.py",
    "api",
    "artifacts.py",
)  # files of the real package, which an empty one lacks

# onnxruntime's names that are replaced by Onward's; all others stay
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
# our modules that import onnxruntime need the real one
_USERS = tuple(
    f"onward.providers.ort.{name}"
    for name in (
        "address_session",
        "bound_session",
        "defects",
        "ort_values",
        "reexports",
        "session",
        "shared_memory",
        "shared_threads",
    )
)
_USAGE = """usage: python -m onward.compat script.py [argument ...]
       python -m onward.compat -m module [argument ...]

Run a script or a module with onnxruntime and onnxruntime.training replaced by Onward."""


def install(*, runtime: bool = False, force: bool = False) -> None:
    """Let `onnxruntime.training` mean `onward.training` in this process.

    With `runtime`, `onnxruntime` itself has Onward's sessions and options in later imports. If the
    real onnxruntime.training is installed, this needs `force`; modules that have imported it keep
    it. Installing twice changes nothing.
    """
    _install_training(force)
    if runtime:
        _install_runtime()


def _install_training(force: bool) -> None:
    if _installed_finders():
        return
    if not force and (where := _real_folder()) is not None:
        raise OptionError(
            f"onnxruntime.training is installed already: {where}\n"
            "import onward.training by its own name, or put it in place of the other: "
            "onward.compat.install(force=True)"
        )
    sys.meta_path.insert(0, _Finder(_remove_modules()))


def uninstall() -> None:
    """Undo `install` for later imports."""
    replaced = sys.modules.get(_RUNTIME)
    if isinstance(replaced, _Runtime):
        sys.modules[_RUNTIME] = replaced.restored()
    for finder in _installed_finders():
        sys.meta_path.remove(finder)
        _remove_modules()
        _restore_modules(finder.displaced)


class _Runtime(ModuleType):
    """onnxruntime with Onward's sessions and options; `real` is the original."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update(vars(real))
        self.real = real
        for name, (home, attribute) in _REPLACED.items():
            setattr(self, name, getattr(import_module(home), attribute))

    def restored(self) -> ModuleType:
        """The original, with the submodules that were imported in the meantime."""
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
    """Finds Onward's modules by onnxruntime's names."""

    def __init__(self, displaced: dict[str, ModuleType]) -> None:
        self.displaced = displaced  # modules of the real onnxruntime.training

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_peers(fullname):
            return None
        peer = next(peer for peer in _ALIASES if _is_below(fullname, peer))
        if peer != _PEER and PathFinder.find_spec(peer.split(".")[0]) is not None:
            return None  # the real torch_ort, which imports onnxruntime.training
        ours = _ALIASES[peer] + fullname.removeprefix(peer)
        found = find_spec(ours)
        if found is None:  # find_spec must return None for a missing module
            return None
        package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(ours), origin=found.origin, is_package=package)


class _Loader(Loader):
    """Loads a module that has another name, without changing it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._own = module.__spec__
        return module

    def get_code(self, name: str) -> CodeType | None:
        """The module's code, for `python -m`."""
        found = find_spec(self._name)
        assert found is not None and isinstance(found.loader, InspectLoader)
        return found.loader.get_code(self._name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # which the import has just replaced


def _installed_finders() -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder)]


def _is_peers(name: str) -> bool:
    return any(_is_below(name, peer) for peer in _ALIASES)


def _is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _real_folder() -> str | None:
    """The folder of the real onnxruntime.training, which is not imported."""
    above = find_spec("onnxruntime")
    for place in above.submodule_search_locations or () if above is not None else ():
        folder = Path(place) / "training"
        if all((folder / part).exists() for part in _PARTS):
            return str(folder)
    return None


def _remove_modules() -> dict[str, ModuleType]:
    """Remove the modules with onnxruntime.training's names from sys.modules, and return them."""
    taken = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_peers(name)}
    above = sys.modules.get("onnxruntime")
    if above is not None and hasattr(above, "training"):
        del above.training
    return taken


def _restore_modules(modules: dict[str, ModuleType]) -> None:
    sys.modules.update(modules)
    if _PEER in modules and "onnxruntime" in sys.modules:
        sys.modules["onnxruntime"].training = modules[_PEER]  # type: ignore[attr-defined]


# -- python -m onward.compat -------------------------------------------------------------------


def run(arguments: Sequence[str]) -> None:
    """Run a script, or a module after `-m`, as python does, on Onward."""
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
    sys.modules["__main__"] = main  # for pickle and for code that inspects __main__
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":  # imported by its name, so that the module exists once
    import_module("onward.compat").run(sys.argv[1:])
