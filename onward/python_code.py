"""Load what a user names in Python code: package.module:attribute or file.py:attribute."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from onward.errors import OptionError
from onward.graph.paths import check_exists
from onward.message_text import suggest_names


def is_named(source: str) -> bool:
    """Whether a text names an attribute of a Python module or file.

    >>> is_named("net.py:Net"), is_named("package.module:Net"), is_named("net.py"), is_named(":x")
    (True, True, False, False)
    """
    place, colon, attribute = source.rpartition(":")
    return bool(colon and place and attribute)


def load_attribute(source: str) -> Any:
    """What `package.module:attribute` or `file.py:attribute` names; the code is executed."""
    place, _, attribute = source.rpartition(":")
    found: Any = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    for name in attribute.split("."):
        if not hasattr(found, name):
            known = [each for each in vars(found) if not each.startswith("_")]
            raise OptionError(f"{place} has no attribute {name!r}\n{suggest_names(name, known)}")
        found = getattr(found, name)
    return found


def _load_file(path: Path) -> ModuleType:
    check_exists(path, "Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, code)  # dataclasses and pickles look it up
    sys.path.insert(0, str(path.absolute().parent))  # its neighbours
    try:
        spec.loader.exec_module(code)
    except (Exception, SystemExit) as error:
        raise OptionError(f"{path} fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.absolute().parent))
    return code


def _import(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"{name} cannot be imported: {error}\ncheck the name, or write the path of its file"
        ) from error
    finally:
        sys.path.remove(str(Path.cwd()))
