"""folder_watch: which models are reloaded when files change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.serving.models import folder_watch
from onward.serving.models.folder_watch import FolderWatch, models_to_reload
from onward.serving.models.repository import Repository
from onward.serving.requests import InferRequest
from onward.serving.settings import ServingSettings
from tests.serving.fake_served import FakeServed
from tests.serving.small_models import scale_model, write_model

ROOT = Path("/srv/models")


@pytest.mark.parametrize(
    ("changed", "known", "names"),
    [
        (["a/1/model.onnx", "a/2/model.onnx"], ["a", "b"], ["a"]),
        (["c/1/model.onnx"], ["a"], ["c"]),
        (["a/1/.model.onnx.swp", "a/1/model.onnx.part", ".git/x"], ["a"], []),
        (["a/config.pbtxt", "b/labels.txt"], ["a", "b"], ["a", "b"]),
        (["x.onnx"], ["a"], ["x", "x.onnx"]),
        (["x.onnx.data"], ["x", "y"], ["x", "x.onnx.data", "y"]),
        (["a"], ["a"], ["a"]),
        (["..data"], ["a"], ["..data", "a"]),
        (["1/model.onnx"], ["models"], ["models"]),
        (["model.onnx"], ["models"], ["models"]),
        (["../other/1/model.onnx"], ["a"], []),
        ([], ["a"], []),
    ],
)
def test_changes_of_a_folder(changed: list[str], known: list[str], names: list[str]) -> None:
    paths = [Path("/srv/other/1/model.onnx") if p.startswith("../") else ROOT / p for p in changed]
    assert models_to_reload(paths, ROOT, known) == names


def test_changes_next_to_a_file() -> None:
    root = ROOT / "digits.onnx"
    assert models_to_reload([root], root, []) == ["digits"]
    assert models_to_reload([ROOT / "digits.onnx.data"], root, ["digits"]) == ["digits"]
    assert models_to_reload([ROOT / ".digits.onnx.tmp"], root, ["digits"]) == []


def watched(test: Callable[[Repository, FolderWatch], Any], root: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = Repository(ServingSettings(), loop=loop, clock=lambda: 0.0, factory=FakeServed)
        await found.open(root)
        await test(found, FolderWatch(root, found))
        await found.close()

    asyncio.run(main())


def names_of(found: Repository) -> list[str]:
    return [row["name"] for row in found.table.index(only_ready=True)]


def test_actions_load_reload_and_unload(tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")

    async def test(found: Repository, watch: FolderWatch) -> None:
        await watch.act([write_model(tmp_path / "b/1/model.onnx"), tmp_path / "b"])
        assert names_of(found) == ["a", "b"]
        (tmp_path / "a/1/model.onnx").unlink()
        (tmp_path / "a/1").rmdir()
        (tmp_path / "a").rmdir()
        (tmp_path / "notes.txt").write_text("x")
        await watch.act([tmp_path / "a/1/model.onnx", tmp_path / "notes.txt"])
        assert names_of(found) == ["b"]

    watched(test, tmp_path)


def test_a_link_to_another_folder_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `current`, which leads from one release to the next."""
    for path in ("v1/a", "v1/b", "v2/b", "v2/c"):
        write_model(tmp_path / path / "1/model.onnx")
    link = tmp_path / "current"
    link.symlink_to("v1")
    places: list[str] = []

    async def awatch(folder: Path, **options: Any) -> AsyncGenerator[set[Any], None]:
        places.append(folder.resolve().name)
        yield set()
        if len(places) == 2:
            options["stop_event"].set()
            return
        link.unlink()
        yield set()  # the link is gone for a moment
        link.symlink_to("v2")
        yield set()

    monkeypatch.setattr(folder_watch, "awatch", awatch)

    async def test(found: Repository, watch: FolderWatch) -> None:
        assert names_of(found) == ["a", "b"]
        watch.start()
        assert watch._task is not None
        await asyncio.wait_for(watch._task, 60)
        assert names_of(found) == ["b", "c"]
        assert places == ["v1", "v2"]

    watched(test, link)


def test_the_folder_of_a_replaced_link_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("store/v1", "store/v2"):
        write_model(tmp_path / path / "1/model.onnx")
    root = tmp_path / "models"
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "store/v1")
    begun: list[str] = []

    async def awatch(folder: Path, **options: Any) -> AsyncGenerator[set[Any], None]:
        begun.append((root / "a").resolve().name)
        if len(begun) == 2:
            options["stop_event"].set()
            return
        yield {(1, str(root / "note.txt"))}
        yield set()
        (root / "a").unlink()
        (root / "a").symlink_to(tmp_path / "store/v2")
        yield {(1, str(root / "a"))}
        yield set()

    monkeypatch.setattr(folder_watch, "awatch", awatch)

    async def test(found: Repository, watch: FolderWatch) -> None:
        watch.start()
        assert watch._task is not None
        await asyncio.wait_for(watch._task, 60)
        assert begun == ["v1", "v2"]
        assert names_of(found) == ["a"]

    watched(test, root)


def test_a_replaced_file_is_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only test with the system's events; it waits for them, however long they take."""
    path = write_model(tmp_path / "m.onnx")
    x = np.ones((1, 4), np.float32)

    async def test(found: Repository, watch: FolderWatch) -> None:
        watch.start()

        reloaded = asyncio.Event()
        reload = found.reload

        async def note(name: str) -> None:
            await reload(name)
            reloaded.set()

        monkeypatch.setattr(found, "reload", note)

        async def until_reloaded() -> None:
            while not reloaded.is_set():  # the watch may not have begun when it was first written
                write_model(path, scale_model(3.0))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reloaded.wait(), 2)

        await asyncio.wait_for(until_reloaded(), 60)
        future = asyncio.get_running_loop().create_future()
        found.submit(InferRequest("m", {"x": x}), future.set_result)
        assert (await future).outputs["y"][0, 0] == 3
        await watch.stop()

    watched(test, path)
