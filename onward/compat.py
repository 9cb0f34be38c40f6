"""Compat: onward.training under the name of onnxruntime.training, on request.

    import onward.compat
    onward.compat.install()

    from onnxruntime.training import artifacts          # onward.training.artifacts
    from onnxruntime.training.api import Module         # onward.training.api.Module
    import onnxruntime.training.onnxblock as onnxblock  # onward.training.onnxblock

Nothing is loaded until it is imported, and both names are one module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from onward.errors import OptionError

_PEER, _OURS = "onnxruntime.training", "onward.training"
_PARTS = ("__init__.py", "api", "artifacts.py")  # what a real one has, and an empty one has not


def install(*, force: bool = False) -> None:
    """Let `onnxruntime.training` mean `onward.training` in this process.

    Where the real one is installed, only with `force`; what has been imported of it stays with
    those who have it. Installing twice changes nothing.
    """
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
    for finder in _installed():
        sys.meta_path.remove(finder)
        _taken_out()
        _put_back(finder.displaced)


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
