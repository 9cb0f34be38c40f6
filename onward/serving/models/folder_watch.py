"""Reload models when their files change: wait until changes settle, then act on each model once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from watchfiles import awatch

from onward.serving.models.model_folder import SUFFIXES, find_models
from onward.serving.models.repository import Repository

_LOG = logging.getLogger("onward.serving")
_STEP = 50  # milliseconds between looks at the system's events
_QUIET = 300  # milliseconds without a change, after which a copy is complete
_TEMPORARY = (".tmp", ".part", ".partial", ".swp", ".crdownload", "~")


def models_to_reload(changed: Iterable[Path], root: Path, known: Collection[str]) -> list[str]:
    """The names of the models that changed files belong to; each once, sorted.

    A model that does not exist any more is among them: reloading it unloads it.

    >>> models_to_reload([Path("models/a/1/model.onnx")], Path("models"), [])
    ['a']
    """
    if _is_file(root):
        return [root.stem] if any(_visible_parts(path, root.parent) for path in changed) else []
    names: set[str] = set()
    for path in changed:
        parts = _visible_parts(path, root)
        if not parts:
            continue
        if set(known) == {root.name}:  # the folder is one model
            names |= set(known)
        elif len(parts) > 1:
            names.add(parts[0])
        elif Path(parts[0]).suffix in SUFFIXES:
            names |= {parts[0], Path(parts[0]).stem}
        else:  # a model's folder, or external data: those that did not change stay as they are
            names |= {parts[0], *known}
    return sorted(names)


class FolderWatch:
    """A task that watches a file's folder, or a folder of models."""

    def __init__(self, root: Path, repository: Repository) -> None:
        self._root, self._repository = root.absolute(), repository
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching; a reload that runs is finished."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while not self._stop.is_set():
                await self._watch()
        except Exception as error:
            if "decode path" not in str(_innermost(error)):
                _LOG.exception("%s is no longer watched", self._root)
                return
            _LOG.error(
                "%s is not watched: %s; rename that file or folder to UTF-8, and start again",
                self._root,
                _innermost(error),
            )

    async def _watch(self) -> None:
        """Act on changes until `stop`, or until a link leads to another folder."""
        folder = self._root.parent if _is_file(self._root) else self._root
        place, targets = os.path.realpath(folder), _link_targets(folder)
        changed: set[Path] = set()
        watched = awatch(
            folder,
            watch_filter=None,
            stop_event=self._stop,
            step=_STEP,
            debounce=_QUIET,
            rust_timeout=_QUIET,
            yield_on_timeout=True,
            recursive=not _is_file(self._root),
        )
        async with contextlib.aclosing(watched):
            async for changes in watched:
                if os.path.realpath(folder) != place and folder.is_dir():  # no event tells of it
                    await self._act_on_all()
                    return
                changed |= {Path(path) for _, path in changes}
                if changes or not changed:
                    continue  # wait until nothing changes for a while
                await self.act(changed)
                changed = set()
                if _link_targets(folder) != targets:
                    return  # to watch the folders that they lead to now

    async def _act_on_all(self) -> None:
        names = await asyncio.to_thread(_present, self._root)
        known = self._repository.table.models
        await self.act([self._root / name / "1" for name in {*names, *known}])

    async def act(self, changed: Iterable[Path]) -> None:
        """Reload the models that these changes concern."""
        names = models_to_reload(changed, self._root, self._repository.table.models)
        present = await asyncio.to_thread(_present, self._root)
        for name in names:
            if name not in present and name not in self._repository.table.models:
                continue
            try:
                await self._repository.reload(name)
            except Exception:
                _LOG.exception("model %r could not be reloaded", name)


def _innermost(error: BaseException) -> BaseException:
    """The first error of nested groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _link_targets(folder: Path) -> set[str]:
    """The folders that the links of a folder lead to."""
    try:
        return {os.path.realpath(each) for each in os.scandir(folder) if each.is_symlink()}
    except OSError:
        return set()


def _present(root: Path) -> set[str]:
    """The names of the models that are there now."""
    try:
        return {model.name for model in find_models(root)}
    except Exception:
        return set()


def _visible_parts(path: Path, folder: Path) -> tuple[str, ...]:
    """The path below a folder; () if it is not below it, hidden or temporary."""
    if folder not in path.parents:
        return ()
    parts = path.relative_to(folder).parts
    return () if any(map(_is_ignored, parts)) else parts


def _is_file(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.is_dir()


def _is_ignored(part: str) -> bool:
    """Hidden and temporary files; not `..data`, the link by which Kubernetes changes a volume."""
    is_hidden = part.startswith(".") and not part.startswith("..")
    return is_hidden or part.startswith("__pycache__") or part.endswith(_TEMPORARY)
