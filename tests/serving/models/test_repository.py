"""Repository: models are loaded, reloaded and unloaded while requests run."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import (
    InvalidModel,
    ModelNotFound,
    ModelUnavailable,
    OnwardError,
    OptionError,
    RequestInvalid,
)
from onward.serving.instance import is_computation
from onward.serving.models.open_model import open_source
from onward.serving.models.repository import Repository
from onward.serving.requests import InferRequest, InferResponse
from onward.serving.settings import ModelSettings, ServingSettings
from onward.sessions.inference import InferenceSession
from tests.serving.fake_served import FakeServed
from tests.serving.small_models import scale_model, write_model

X = np.arange(4, dtype=np.float32).reshape(1, 4)


class Made(list[FakeServed]):
    """A factory of served models that keeps them."""

    def __call__(self, *args: Any, **named: Any) -> FakeServed:
        self.append(FakeServed(*args, **named))
        return self[-1]


@asynccontextmanager
async def repository(
    path: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[Repository, Made]]:
    made = Made()
    found = Repository(
        ServingSettings(**settings),
        loop=asyncio.get_running_loop(),
        clock=lambda: 0.0,
        factory=made,
    )
    try:
        if path is not None:
            await found.open(path)
        yield found, made
    finally:
        await found.close()


async def infer(found: Repository, model: str, version: str = "", **inputs: Any) -> InferResponse:
    future: asyncio.Future[InferResponse | Exception] = asyncio.get_running_loop().create_future()
    found.submit(InferRequest(model, inputs or {"x": X}, version), future.set_result)
    result = await asyncio.wait_for(future, 60)
    if isinstance(result, Exception):
        raise result
    return result


def in_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    run.__name__ = test.__name__
    return run


def states(found: Repository) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (row["name"], row["version"]): (row["state"], row.get("reason", ""))
        for row in found.table.index()
    }


def factor(response: InferResponse) -> float:
    return float(response.outputs["y"][0, 1])


@in_loop
async def test_a_file_is_served_under_its_stem(tmp_path: Path) -> None:
    async with repository(write_model(tmp_path / "digits.onnx")) as (found, made):
        response = await infer(found, "digits")
        assert (response.version, factor(response)) == ("1", 2.0)
        assert states(found) == {("digits", "1"): ("READY", "")}
        assert made[0].events == ["prepare"]
    assert made[0].events == ["prepare", "close"]


@in_loop
async def test_versions_follow_the_policy(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_model(tmp_path / f"a/{number}/model.onnx", scale_model(number))
    async with repository(tmp_path) as (found, _):
        assert list(states(found)) == [("a", "3")]
    (tmp_path / "a/config.pbtxt").write_text("version_policy { specific { versions: [1, 3] } }")
    async with repository(tmp_path) as (found, _):
        assert found.table.ready_versions("a") == ["1", "3"]
        assert factor(await infer(found, "a")) == 3
        assert factor(await infer(found, "a", "1")) == 1


@in_loop
async def test_unknown_models_have_tritons_texts(tmp_path: Path) -> None:
    async with repository(write_model(tmp_path / "x.onnx")) as (found, _):
        with pytest.raises(ModelNotFound, match=r"^Request for unknown model: 'y' is not found$"):
            await infer(found, "y")
        text = "^Request for unknown model: 'x' version 7 is not found$"
        with pytest.raises(ModelNotFound, match=text):
            await infer(found, "x", "7")
        for version in ("one", "\u00b2", "9" * 5000):
            with pytest.raises(ModelNotFound, match=f"version {version} is not found"):
                await infer(found, "x", version)
        await found.unload("x")
        with pytest.raises(ModelNotFound, match="'x' has no available versions"):
            await infer(found, "x")
        with pytest.raises(ModelUnavailable, match="version 1 is not at ready state"):
            await infer(found, "x", "1")
        with pytest.raises(ModelNotFound, match="failed to load 'y', failed to poll"):
            await found.load("y", {})
        with pytest.raises(ModelNotFound, match="'y' is not found"):
            await found.unload("y")


@in_loop
async def test_a_reload_leaves_no_gap(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a/1/model.onnx")
    async with repository(tmp_path) as (found, made):
        write_model(path, scale_model(5))
        answers: list[float] = []
        reload = asyncio.create_task(found.reload("a"))
        while not reload.done():
            answers.append(factor(await infer(found, "a")))
        assert set(answers) <= {2.0, 5.0} and answers == sorted(answers)
        assert factor(await infer(found, "a")) == 5
        assert made[0].events == ["prepare", "drain", "close"]
        assert made[1].events == ["prepare"]
        await found.reload("a")  # nothing has changed
        assert len(made) == 2


@in_loop
async def test_a_corrupt_version_keeps_the_old_one(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a/1/model.onnx")
    async with repository(tmp_path) as (found, made):
        write_model(path, b"not a model")
        await found.reload("a")
        state, reason = states(found)["a", "1"]
        assert state == "READY" and "model.onnx" in reason and "\n" not in reason
        assert factor(await infer(found, "a")) == 2
        with pytest.raises(RequestInvalid, match="load failed for model 'a': version 1 is at UNAV"):
            await found.load("a", {})
        write_model(tmp_path / "a/2/model.onnx", b"broken, too")
        write_model(path)
        await found.reload("a")
        assert states(found)["a", "1"][0] == "READY"
        assert states(found)["a", "2"][0] == "UNAVAILABLE"
        assert factor(await infer(found, "a")) == 2
        write_model(tmp_path / "a/2/model.onnx", scale_model(7))
        await found.reload("a")
        assert states(found) == {("a", "1"): ("UNAVAILABLE", "unloaded"), ("a", "2"): ("READY", "")}
        assert factor(await infer(found, "a")) == 7
        assert made[0].events[-1] == "close"


@in_loop
async def test_the_index_says_why_a_broken_configuration_is_not_followed(tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")
    config = tmp_path / "a/config.pbtxt"
    async with repository(tmp_path) as (found, _):
        config.write_text("max_batch_size: oops")
        await found.reload("a")
        state, reason = states(found)["a", "1"]
        assert state == "READY" and "max_batch_size is 'oops'" in reason
        assert factor(await infer(found, "a")) == 2
        config.write_text("max_batch_size: 4")
        await found.reload("a")
        assert states(found)["a", "1"] == ("READY", "")


@in_loop
async def test_one_broken_model_does_not_stop_the_others(tmp_path: Path) -> None:
    write_model(tmp_path / "good/1/model.onnx")
    write_model(tmp_path / "bad/1/model.onnx", b"?")
    (tmp_path / "empty").mkdir()
    async with repository(tmp_path) as (found, _):
        assert states(found)["good", "1"][0] == "READY"
        assert states(found)["bad", "1"][0] == "UNAVAILABLE"
        assert "has no model: put one at" in states(found)["empty", ""][1]
        assert found.table.index(only_ready=True) == [
            {"name": "good", "version": "1", "state": "READY"}
        ]


@in_loop
async def test_a_broken_file_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OnwardError, match=r"bad\.onnx"):
        async with repository(write_model(tmp_path / "bad.onnx", b"?")):
            pass


@in_loop
async def test_unloading_gives_the_memory_back(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a/1/model.onnx")
    async with repository(tmp_path) as (found, made):
        instance = weakref.ref(made[0].instances[0])
        await infer(found, "a")
        await found.unload("a")
        assert made.pop().events == ["prepare", "drain", "close"]
        gc.collect()
        assert instance() is None
        write_model(path, scale_model(3))
        await found.reload("a")  # a watched folder does not undo a client's unload
        assert states(found) == {("a", "1"): ("UNAVAILABLE", "unloaded")}
        await found.load("a", {})
        assert factor(await infer(found, "a")) == 3


@in_loop
async def test_a_removed_folder_is_unloaded(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a/1/model.onnx")
    write_model(tmp_path / "b/1/model.onnx")
    async with repository(tmp_path) as (found, _):
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()
        await found.reload("a")
        assert list(states(found)) == [("b", "1")]
        write_model(tmp_path / "c.onnx")
        await found.reload("c")
        assert factor(await infer(found, "c")) == 2


@in_loop
async def test_a_file_that_is_gone_for_a_moment_stays_served(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.onnx")
    async with repository(path) as (found, _):
        path.unlink()
        await found.reload("a")
        assert factor(await infer(found, "a")) == 2


@in_loop
async def test_clients_override_configurations_and_upload_files(tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")
    async with repository(tmp_path) as (found, made):
        config = {"max_batch_size": 4, "instance_group": [{"count": 2}]}
        await found.load("a", {"config": json.dumps(config)})
        assert made[-1].settings.max_batch_size == 4 and len(made[-1].instances) == 2
        await found.load("a", {})
        assert made[-1].settings.max_batch_size == "auto"
        uploads = {"file:1/model.onnx": scale_model(8), "file:3/model.onnx": scale_model(9)}
        await found.load("a", {"config": '{"version_policy": {"all": {}}}', **uploads})
        assert found.table.ready_versions("a") == ["1", "3"]
        assert factor(await infer(found, "a")) == 9
        with pytest.raises(RequestInvalid, match="version 1 is at UNAVAILABLE state"):
            await found.load("a", {"file:1/model.onnx": b"?"})
        assert factor(await infer(found, "a", "1")) == 8
        await found.load("fresh", {"file:1/model.onnx": scale_model(6)})
        assert factor(await infer(found, "fresh")) == 6
        for bad in ("../m.onnx", "/etc/m.onnx", "m.onnx", "1/../../m.onnx"):
            with pytest.raises(RequestInvalid, match="is not a path such as file:1/model"):
                await found.load("a", {f"file:{bad}": b""})
        with pytest.raises(RequestInvalid, match="is not bytes"):
            await found.load("a", {"file:1/m.onnx": "text"})
        with pytest.raises(RequestInvalid, match="of the request is not JSON"):
            await found.load("a", {"config": "{"})
        with pytest.raises(RequestInvalid, match="configuration of the request: the model has no"):
            await found.load("a", {"config": '{"input": [{"name": "w"}]}'})
        wrong = '{"parameters": {"intra_op_thread_count": {"string_value": "w"}}}'
        with pytest.raises(RequestInvalid, match="configuration of the request: intra_op_thread"):
            await found.load("a", {"config": wrong})


@in_loop
async def test_settings_override_the_configuration(tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")
    write_model(tmp_path / "b/1/model.onnx")
    text = "max_batch_size: 4 parameters { key: 'intra_op_thread_count' value { string_value: '3'}}"
    (tmp_path / "a/config.pbtxt").write_text(text)
    models = {"*": {"threads": 1}, "a": {"max_batch_size": 8}}
    async with repository(tmp_path, models=models) as (_, made):
        a, b = sorted(made, key=lambda each: each.name)
        assert (a.settings.max_batch_size, a.settings.threads) == (8, 1)
        assert (b.settings.max_batch_size, b.settings.threads) == ("auto", 1)


@in_loop
async def test_a_configuration_that_contradicts_is_an_error(tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")
    write_model(tmp_path / "b/1/model.onnx")
    (tmp_path / "a/config.pbtxt").write_text('input { name: "z" }')
    (tmp_path / "b/config.pbtxt").write_text('name: "other"')
    with pytest.raises(OptionError, match=r"a/config.pbtxt: the model has no input 'z'"):
        async with repository(tmp_path):
            pass
    (tmp_path / "a/config.pbtxt").unlink()
    async with repository(tmp_path) as (found, _):
        assert "names 'other': rename the folder" in states(found)["b", ""][1]


@in_loop
async def test_a_configuration_in_a_wrong_form_stops_no_other_model(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_model(tmp_path / name / "1/model.onnx")
    (tmp_path / "b/config.pbtxt").write_text("dynamic_batching: true")
    (tmp_path / "c/config.pbtxt").write_text("version_policy { latest { num_versions: all } }")
    async with repository(tmp_path) as (found, _):
        assert factor(await infer(found, "a")) == 2
        shown = states(found)
        assert shown["b", ""][1].startswith("b/config.pbtxt: dynamic_batching is True")
        assert "num_versions is 'all', not a whole number" in shown["c", ""][1]


def test_what_is_ignored_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_model(tmp_path / "a/1/model.onnx")
    (tmp_path / "a/config.pbtxt").write_text("mystery: 1")

    async def main() -> None:
        async with repository(tmp_path) as (found, _):
            write_model(path, scale_model(3))
            await found.reload("a")

    asyncio.run(main())
    lines = [record.message for record in caplog.records if "ignored" in record.message]
    assert lines == ["model 'a': not supported, and ignored: mystery"]


def test_why_a_model_cannot_be_loaded_is_logged_again_only_if_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path / "good/1/model.onnx")
    path = write_model(tmp_path / "bad/1/model.onnx")
    path.write_bytes(b"no model")
    config = write_model(tmp_path / "ugly/1/model.onnx").parents[1] / "config.pbtxt"
    config.write_text("input {")

    async def main() -> None:
        async with repository(tmp_path) as (found, _):
            for text in ("input {", "name: 'other'"):
                config.write_text(text)
                for name in ("bad", "ugly", "bad", "ugly"):
                    await found.reload(name)
            write_model(path)
            await found.reload("bad")
            assert factor(await infer(found, "bad")) == 2

    asyncio.run(main())
    lines = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert sorted(line.split(":")[0] for line in lines) == [
        "model 'bad' version 1 cannot be loaded",
        "model 'ugly'",
        "model 'ugly'",
    ]


def test_a_session_of_the_user_does_not_run_in_the_thread_of_the_event_loop() -> None:
    opened = open_source(InferenceSession(scale_model()), ModelSettings(instances=2))
    assert [is_computation(each) for each in opened.instances] == [False, False]


@in_loop
async def test_sessions_functions_and_files_are_added(tmp_path: Path) -> None:
    async with repository() as (found, made):
        await found.add("double", lambda x: {"y": 2 * x}, ModelSettings(instances=2))
        assert factor(await infer(found, "double")) == 2 and len(made[0].instances) == 2
        await found.add("file", write_model(tmp_path / "m.onnx", scale_model(4)))
        assert factor(await infer(found, "file")) == 4
        with pytest.raises(OptionError, match="7 is not a function"):
            await found.add("seven", 7)
        with pytest.raises(InvalidModel):
            await found.add("broken", write_model(tmp_path / "b.onnx", b"?"))
        assert sorted(found.table.models) == ["double", "file"]
        await found.load("double", {})  # nothing to reload
        assert factor(await infer(found, "double")) == 2
