"""Load tests: arrivals, percentiles, reports and payloads as pure functions; then a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from conformance.reliability.serving_models import write_model
from conformance.reliability.serving_process import ServerProcess
from onward.errors import FeedError, FileMissing, ModelUnavailable, OptionError
from onward.serving.load_test.arrivals import ClosedPace, OpenPace, arrival_times
from onward.serving.load_test.client_processes import run_load
from onward.serving.load_test.infer_payloads import binary_body, grpc_message, infer_payload
from onward.serving.load_test.latency_histogram import LatencyHistogram
from onward.serving.load_test.latency_plot import draw_bars
from onward.serving.load_test.load_figures import LOST, LoadFigures, merge_figures
from onward.serving.load_test.load_page import render_load_page
from onward.serving.load_test.load_plan import LoadPlan, split_plan
from onward.serving.load_test.load_report import find_warnings, make_report
from onward.serving.load_test.protobuf_wire import (
    bytes_field,
    fields,
    integers,
    packed_field,
)
from onward.serving.load_test.request_feeds import random_feeds, read_feeds
from onward.serving.load_test.server_model import find_model, read_refusal
from onward.serving.models.function_instance import FunctionInstance
from onward.serving.requests import TensorSpec
from tests.serving.small_models import default_model

URL = "http://localhost:8000"
X = TensorSpec("x", "FP32", (-1, 64))
STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_server.py")), "{path}",
            "--http-port", "{http_port}")  # fmt: skip


# -- arrivals -------------------------------------------------------------------------------------


def test_constant_arrivals_have_equal_gaps() -> None:
    times = arrival_times(LoadPlan(URL, 1.0, 0.0, rate=4, arrivals="constant"))
    assert times.tolist() == [0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_the_rate_and_exponential_gaps() -> None:
    times = arrival_times(LoadPlan(URL, 100.0, 0.0, rate=100, seed=1))
    gaps = np.diff(times)
    assert abs(len(times) - 10_000) < 400 and times[-1] < 100
    assert abs(gaps.std() / gaps.mean() - 1) < 0.05


def test_processes_together_send_at_the_rate_of_the_plan() -> None:
    plan = LoadPlan(URL, 1.0, 0.0, connections=5, rate=10, arrivals="constant")
    shares = split_plan(plan, 2)
    assert [share.connections for share in shares] == [3, 2]
    together = np.sort(np.concatenate([arrival_times(share) for share in shares]))
    np.testing.assert_allclose(together, arrival_times(plan))


def test_no_more_processes_than_connections() -> None:
    assert len(split_plan(LoadPlan(URL, connections=2), 8)) == 2


def test_a_request_that_waits_keeps_its_intended_start() -> None:
    pace = OpenPace(np.array([0.0, 1.0, 2.0]), start=10.0)
    assert pace.arrive(9.0) == 0 and pace.next_arrival() == 10.0
    assert pace.arrive(11.5) == 2
    assert pace.next_start(11.5) == 10.0  # although it is sent 1.5 s later
    assert pace.next_start(11.6) == 11.0 and pace.next_start(11.7) is None
    assert not pace.is_over and pace.arrive(12.0) == 1
    assert pace.next_start(12.0) == 12.0 and pace.is_over


def test_a_stopped_open_loop_sends_nothing() -> None:
    pace = OpenPace(np.array([0.0, 1.0]), start=0.0)
    pace.arrive(0.5)
    pace.stop()
    assert pace.is_over and pace.next_start(0.5) is None and pace.arrive(3.0) == 0


def test_a_closed_loop_sends_until_the_end() -> None:
    pace = ClosedPace(end=2.0)
    assert pace.next_start(1.9) == 1.9 and pace.next_start(2.0) is None and pace.is_over


@pytest.mark.parametrize("wrong", [{"connections": 0}, {"rate": 0.0}, {"seconds": 0.0}])
def test_impossible_plans_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        LoadPlan(URL, **wrong)


# -- latencies ------------------------------------------------------------------------------------


def test_percentiles_are_those_of_numpy_within_the_width_of_a_bucket() -> None:
    times = np.random.default_rng(0).lognormal(-6, 1, 200_000)
    latencies = LatencyHistogram()
    latencies.add_many(times)
    for percent in (1, 50, 90, 99, 99.9):
        expected = np.percentile(times, percent, method="inverted_cdf")
        assert latencies.percentile(percent) == pytest.approx(expected, rel=0.006)
    assert latencies.maximum == times.max() and latencies.minimum == times.min()
    assert latencies.percentile(100) == times.max()
    assert latencies.mean == pytest.approx(times.mean()) and latencies.count == 200_000


def test_merged_histograms_are_one_histogram() -> None:
    parts = np.random.default_rng(0).exponential(0.01, (2, 500))
    whole, merged = LatencyHistogram(), LatencyHistogram()
    whole.add_many(parts.ravel())
    for part in parts:
        other = LatencyHistogram()
        other.add_many(part)
        merged.merge(LatencyHistogram.from_json(json.loads(json.dumps(other.to_json()))))
    assert merged.to_json()["buckets"] == whole.to_json()["buckets"]
    assert merged.maximum == whole.maximum and merged.mean == pytest.approx(whole.mean)


def test_no_latencies_are_zero() -> None:
    empty = LatencyHistogram()
    assert (empty.percentile(99), empty.minimum, empty.mean, empty.coarse(5)) == (0, 0, 0, [])
    empty.merge(LatencyHistogram())
    assert empty.to_json()["minimum"] == 0


def test_one_slow_answer_has_a_bar() -> None:
    latencies = LatencyHistogram()
    latencies.add_many([0.001] * 100_000 + [1.0])
    bars = draw_bars(latencies, 10)
    assert "█" * 48 in bars[0] and bars[0].endswith("100,000") and "▏ 1" in bars[-1]


# -- reports --------------------------------------------------------------------------------------


def figures_of(count: int, latency: float = 0.01) -> LoadFigures:
    figures = LoadFigures(seconds=2.0)
    for _ in range(count):
        figures.count("200", True, latency, True)
    return figures


def test_errors_are_counted_by_status_and_not_in_the_latencies() -> None:
    figures = figures_of(10)
    figures.count("503", False, 0.5, True)
    figures.count(LOST, False, 0.5, True)
    report = make_report(LoadPlan(URL), "m", "HTTP binary", figures)
    assert report["outcomes"] == {"200": 10, "503": 1, LOST: 1}
    assert report["errors"] == 2 and report["requests"] == 12 and report["throughput"] == 5.0
    assert report["latency"]["max"] == 0.01 and report["error_latency"]["count"] == 2


def test_a_good_answer_after_the_end_has_a_latency_but_no_throughput() -> None:
    figures = figures_of(4)
    figures.count("200", True, 3.0, False)
    assert figures.throughput == 2.0 and figures.latencies.maximum == 3.0


def test_figures_of_processes_are_summed() -> None:
    parts = [figures_of(3), figures_of(5)]
    parts[0].cpu_share, parts[1].is_complete = 0.5, False
    merged = merge_figures(
        [LoadFigures.from_json(json.loads(json.dumps(p.to_json()))) for p in parts]
    )
    assert merged.latencies.count == merged.in_time == 8 and merged.seconds == 2.0
    assert merged.cpu_share == 0.5 and not merged.is_complete and merged.processes == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu_share": 0.95}, "the client is the bottleneck: a process of it used 95 % of a core"),
        ({"unsent": 7}, "7 requests found none of the 32 connections free"),
        ({}, ""),
    ],
)
def test_doubtful_figures_have_a_warning(changes: dict[str, Any], words: str) -> None:
    figures = figures_of(1000)
    for name, number in changes.items():
        setattr(figures, name, number)
    found = find_warnings(LoadPlan(URL), figures)
    assert (words in found[0]) if words else not found


def test_a_late_event_loop_has_a_warning() -> None:
    figures = figures_of(1000)
    figures.lateness.add_many([0.02] * 100)
    [warning] = find_warnings(LoadPlan(URL), figures)
    assert "event loop was late by 20.00 ms" in warning


def test_few_answers_have_a_warning() -> None:
    [warning] = find_warnings(LoadPlan(URL), figures_of(10))
    assert warning == "10 answers are too few for p99.9: measure longer with --seconds"


def test_the_page_escapes_names_and_needs_no_other_file() -> None:
    figures = figures_of(1000)
    report = make_report(LoadPlan(URL), "<m>", "HTTP binary", figures)
    page = render_load_page(report, figures)
    assert "&lt;m&gt; at http" in page and "<m>" not in page and page.count("<svg") == 2
    assert "src=" not in page and "<script" not in page and "500 answers per second" in page


def test_the_page_of_a_server_that_never_answered() -> None:
    figures = LoadFigures(seconds=1.0)
    figures.count(LOST, False, 0.1, True)
    assert LOST in render_load_page(make_report(LoadPlan(URL), "m", "gRPC", figures), figures)


# -- requests -------------------------------------------------------------------------------------


def test_binary_requests_have_json_first_then_the_tensors() -> None:
    feeds = {"a": np.arange(3, dtype=np.int64), "b": np.array([b"xy"], object)}
    length, body = binary_body(feeds)
    head = json.loads(body[:length])
    sizes = [entry["parameters"]["binary_data_size"] for entry in head["inputs"]]
    assert sizes == [24, 6] and body[length:] == feeds["a"].tobytes() + b"\x02\0\0\0xy"
    request = infer_payload("http://host:8000/base/", "m 1", feeds, headers={"X": "y"})
    assert request.startswith(b"POST /base/v2/models/m%201/infer HTTP/1.1\r\nHost: host:8000\r\n")
    assert f"Inference-Header-Content-Length: {length}\r\nX: y\r\n".encode() in request
    assert request.endswith(b"\r\n\r\n" + body)


def test_json_requests_have_numbers() -> None:
    request = infer_payload(URL, "m", {"x": np.ones((1, 2), np.float32)}, "json", version="3")
    body = json.loads(request.split(b"\r\n\r\n")[1])
    assert body["inputs"] == [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}]
    assert request.startswith(b"POST /v2/models/m/versions/3/infer ")


def test_grpc_messages_have_raw_contents() -> None:
    x = np.ones((2, 300), np.float32)
    message = list(fields(grpc_message("m", {"x": x})))
    assert [number for number, _ in message] == [1, 5, 7]
    assert message[0][1] == b"m" and message[2][1] == x.tobytes()
    assert isinstance(message[1][1], bytes)
    tensor = dict(fields(message[1][1]))
    assert tensor[1] == b"x" and tensor[2] == b"FP32"
    assert isinstance(tensor[3], bytes) and integers(tensor[3]) == [2, 300]


def test_random_requests_differ_and_fit_the_model() -> None:
    inputs = [X, TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("t", "BYTES", (1,))]
    first, second = random_feeds(inputs, {"ids": [2, 7]}, 2, seed=0)
    assert first["x"].shape == (1, 64) and first["x"].dtype == np.float32
    assert first["ids"].shape == (2, 7) and set(first["ids"].ravel().tolist()) <= {0, 1}
    assert isinstance(first["t"][0], bytes) and (first["x"] != second["x"]).any()


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": [1]}, "--shape names z, but the model's inputs are x"),
        ({"x": [1, 65]}, r"--shape gives x \[1, 65\], but the model takes \[-1, 64\]"),
        ({"x": [64]}, "--shape gives x"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, list[int]], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        random_feeds([X], shapes, 1, 0)


def test_requests_of_an_npz_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", x=np.ones((3, 1, 64)))
    feeds = read_feeds(tmp_path / "r.npz", [X])
    assert len(feeds) == 3 and feeds[0]["x"].shape == (1, 64) and feeds[0]["x"].dtype == np.float32


def test_requests_of_a_file_of_json_lines(tmp_path: Path) -> None:
    entry = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    lines = [json.dumps({"inputs": [entry]}), "", json.dumps({"x": [[3, 4], [5, 6]]})]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    first, second = read_feeds(tmp_path / "r.jsonl", [X])
    assert first["x"].tolist() == [[1, 2]] and second["x"].shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.jsonl", "{", "line 1 of the requests is not JSON"),
        ("r.jsonl", "[]", "line 1 of the requests is not an object"),
        ("r.jsonl", '{"z": 1}', "the requests feed z, but the model's inputs are x"),
        ("r.jsonl", '{"inputs": [{"name": "x"}]}', "an input needs name, datatype, shape and data"),
        ("r.jsonl", "\n", "has no request"),
        ("r.txt", "", "is not a file of requests"),
    ],
)
def test_files_that_are_no_requests(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FeedError, match=words):
        read_feeds(tmp_path / name, [X])


def test_a_missing_file_of_requests(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match="there is no file"):
        read_feeds(tmp_path / "r.npz", [X])


def test_arrays_of_different_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", x=np.ones((3, 64)), y=np.ones((2, 64)))
    with pytest.raises(FeedError, match="their first axis counts the requests"):
        read_feeds(tmp_path / "r.npz", [X])


# -- a server -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "answers" / "1" / "model.onnx")
    with ServerProcess(folder, STAND_IN) as started:
        yield started


@pytest.mark.parametrize(
    ("plan", "processes"),
    [
        ({"connections": 4}, 1),
        ({"connections": 4}, 2),
        ({"connections": 8, "rate": 100.0}, 1),
    ],
    ids=["closed loop", "two processes", "open loop"],
)
def test_a_server_is_loaded(server: ServerProcess, plan: dict[str, Any], processes: int) -> None:
    model = find_model(server.url, None)
    assert model.name == "answers" and model.inputs == (X,)
    feeds = random_feeds(model.inputs, {}, 4, 0)
    payloads = [infer_payload(server.url, model.name, each) for each in feeds]
    shown: list[float] = []
    figures = run_load(
        LoadPlan(server.url, seconds=0.4, warm_up=0.1, **plan), payloads, processes,
        lambda seconds, _: shown.append(seconds),
    )  # fmt: skip
    assert figures.is_complete and set(figures.outcomes) == {"200"}
    assert figures.latencies.count == figures.outcomes["200"] and figures.processes == processes
    assert shown and 0 < figures.seconds < 0.5


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interrupt_keeps_the_figures_so_far(server: ServerProcess, processes: int) -> None:
    payload = infer_payload(server.url, "answers", {"x": np.ones((1, 64), np.float32)})
    plan = LoadPlan(server.url, seconds=600, warm_up=0, connections=2)
    figures = run_load(plan, [payload], processes, lambda *_: signal.raise_signal(signal.SIGINT))
    assert not figures.is_complete and figures.outcomes["200"] and figures.seconds < 600


def test_errors_of_a_server_are_counted(server: ServerProcess) -> None:
    payload = infer_payload(server.url, "unknown", {"x": np.ones((1, 64), np.float32)})
    figures = run_load(LoadPlan(server.url, seconds=0.1, warm_up=0, connections=1), [payload])
    assert set(figures.outcomes) == {"404"} and figures.errors and not figures.throughput
    assert read_refusal(server.url, payload)
    good = infer_payload(server.url, "answers", {"x": np.ones((1, 64), np.float32)})
    assert read_refusal(server.url, good) == ""


def test_no_server_is_counted_as_refused() -> None:
    figures = run_load(
        LoadPlan("http://127.0.0.1:9", seconds=0.1, warm_up=0, connections=1), [b"x"]
    )
    assert set(figures.outcomes) == {"connection refused"}
    with pytest.raises(ModelUnavailable, match=r"no server answers at http://127.0.0.1:9"):
        find_model("http://127.0.0.1:9", None)


@pytest.fixture
def grpc_url() -> Iterator[str]:
    """A gRPC server with one model, which answers bytes and refuses an empty request."""
    grpc = pytest.importorskip("grpc")
    tensor = bytes_field(1, b"x") + bytes_field(2, b"FP32") + packed_field(3, (-1, 64))

    def infer(message: bytes, context: Any) -> bytes:
        found = dict(fields(message))
        if 7 not in found:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no input")
        return bytes_field(1, found[1])

    methods = {
        "ModelInfer": infer,
        "ModelMetadata": lambda message, _: bytes_field(1, b"m") + bytes_field(4, tensor),
        "RepositoryIndex": lambda message, _: bytes_field(1, bytes_field(1, b"m")),
    }
    handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in methods.items()}
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[service])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_grpc_server_is_loaded(grpc_url: str) -> None:
    model = find_model(grpc_url, None)
    assert model.name == "m" and model.inputs == (X,)
    good = infer_payload(grpc_url, "m", random_feeds(model.inputs, {}, 1, 0)[0])
    plan = LoadPlan(grpc_url, seconds=0.3, warm_up=0, connections=2)
    figures = run_load(plan, [good, grpc_message("m", {})])
    assert set(figures.outcomes) == {"OK", "INVALID_ARGUMENT"} and figures.latencies.count
    assert read_refusal(grpc_url, good) == "" and read_refusal(grpc_url, grpc_message("m", {}))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_optional_inputs_are_not_sent(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "m.onnx").write_bytes(default_model())
    with onward.Server(str(tmp_path / "m.onnx"), http_port=0, grpc_port=0) as running:
        url = running.url if scheme == "http" else f"grpc://{running.info.grpc_address}"
        model = find_model(url, None)
        assert [spec.is_optional for spec in model.inputs] == [False, True, True]
        assert list(random_feeds(model.inputs, {}, 1, 0)[0]) == ["x"]


def bench(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onward", "bench", "--seconds", "0.2", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.integration
def test_the_command_prints_a_report_and_writes_a_page(
    server: ServerProcess, tmp_path: Path
) -> None:
    page = tmp_path / "load.html"
    done = bench("--server", server.url, "--connections", 2, "--page", page)
    assert done.returncode == 0, done.stderr
    for word in ("answers at http://", "closed loop, 2 connections, HTTP binary", "p99.9", "█"):
        assert word in done.stdout, word
    assert page.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.integration
def test_the_command_says_why_requests_are_refused() -> None:
    inputs, outputs = [TensorSpec("x", "FP32", (-1,))], [TensorSpec("y", "FP32", (-1,))]
    failing = FunctionInstance(lambda x: x[9], inputs, outputs)
    quiet: dict[str, Any] = {"http_port": 0, "grpc_port": None, "log_format": "none"}
    with onward.Server(failing, name="m", **quiet) as running:
        done = bench("--server", running.url, "--connections", 1)
    assert done.returncode == 1
    assert "warning: the server refuses the requests: model 'm' cannot run" in done.stderr


@pytest.mark.integration
def test_the_command_prints_json(server: ServerProcess) -> None:
    done = bench("--server", server.url, "--rate", 50, "--form", "json", "--json")
    report = json.loads(done.stdout)
    assert report["loop"] == "open" and report["complete"] and report["form"] == "HTTP json"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--server", "localhost"), "--server takes a URL"),
        (("--server", URL, "model.onnx"), "MODEL and --server cannot be given together"),
        ((), "no model given"),
    ],
)
def test_wrong_commands_have_one_line(words: tuple[str, ...], message: str) -> None:
    done = bench(*words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
