"""ModelConfig: normalised, turned into settings, checked against the model, completed."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError
from onward.serving.instance import Instance, is_compiling
from onward.serving.models.completed_config import ONNX, completed_config
from onward.serving.models.config_fields import check_fields
from onward.serving.models.config_pbtxt import parse_text
from onward.serving.models.config_settings import model_settings, settings_of_config
from onward.serving.models.config_signature import configured
from onward.serving.models.model_config import normalize, read_override
from onward.serving.models.version_policy import choose_versions
from onward.serving.processing.processing import ProcessedInstance
from onward.serving.requests import Array, TensorSpec
from onward.serving.settings import ModelSettings


class Doubling:
    """An instance that doubles `x` into `y`; `z` is its sum."""

    def __init__(self, shape: tuple[int, ...] = (-1, 4)) -> None:
        self.inputs = [TensorSpec("x", "FP32", shape)]
        self.outputs = [TensorSpec("y", "FP32", shape), TensorSpec("z", "FP32", shape[:1])]
        self.shapes: list[tuple[int, ...]] = []
        self.is_compiling = False

    def run(self, feeds: Any, outputs: Any = None) -> dict[str, Array]:
        self.shapes.append(feeds["x"].shape)
        found = {"y": 2 * feeds["x"], "z": feeds["x"].reshape(len(feeds["x"]), -1).sum(1)}
        return {name: found[name] for name in outputs or found}

    def close(self) -> None: ...


def config_of(text: str) -> dict[str, Any]:
    return normalize(parse_text(text), "m")


def test_text_and_json_have_one_form() -> None:
    text = config_of("""
        max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 4 }
        parameters { key: "k" value { string_value: "v" } }
        version_policy { specific { versions: 1 versions: 3 } }
    """)
    json = read_override("""{"maxBatchSize": "8", "input": [{"name": "x", "dataType": "TYPE_FP32",
        "dims": ["4"]}], "parameters": {"k": {"stringValue": "v"}},
        "versionPolicy": {"specific": {"versions": [1, 3]}}}""")
    assert text == json
    assert text["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"input": {"dims": [1]}}, "m: an input or output has no name"),
        ({"input": {"name": "x", "data_type": "TYPE_FP8"}}, "'x' has the unknown data_type"),
        ({"input": {"name": "x", "dims": ["a"]}}, "m: dims is 'a', not a whole number"),
        ({"max_batch_size": -1}, "max_batch_size must be 0 or more"),
        ({"parameters": 7}, "parameters is not a map"),
    ],
)
def test_wrong_configurations_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        normalize(config, "m")


@pytest.mark.parametrize("text", ["{", "[]", None, b"\xff"])
def test_an_override_must_be_json(text: Any) -> None:
    with pytest.raises(OptionError, match="the configuration of the request is not"):
        read_override(text)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("max_batch_size: 8", {"max_batch_size": 8, "batch_delay": 0.0}),
        ("""dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100
            priority_levels: 2 default_priority_level: 1
            default_queue_policy { default_timeout_microseconds: 5000 max_queue_size: 10 } }""",
         {"preferred_batch_sizes": [4, 8], "batch_delay": 1e-4, "priority_levels": 2,
          "default_priority": 1, "timeout": 0.005, "max_queue_size": 10,
          "allow_timeout_override": False}),
        ("""sequence_batching { max_sequence_idle_microseconds: 5000000
            control_input { name: "START" control { kind: CONTROL_SEQUENCE_START
                            fp32_false_true: [ 0, 1 ] } }
            control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID } }
            state { input_name: "h" output_name: "h_out" data_type: TYPE_FP32 dims: [ 4 ] } }""",
         {"sequence_idle_timeout": 5.0, "sequence_controls": {"START": "start",
          "ID": "correlation_id"}, "sequence_states": [{"input": "h", "output": "h_out"}]}),
        ("instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_CPU } ]",
         {"instances": 3, "providers": ["CPUExecutionProvider"]}),
        ('parameters { key: "intra_op_thread_count" value { string_value: "3" } }',
         {"threads": 3}),
        ("response_cache { enable: true }", {"result_cache_bytes": 64 << 20}),
        ('output { name: "y" label_filename: "l.txt" }', {"labels": {"y": "l.txt"}}),
        ("version_policy { all { } }", {"version_policy": {"all": {}}}),
        ('model_warmup { name: "w" batch_size: 1 }', {"warm_up": True}),
    ],
)  # fmt: skip
def test_settings(text: str, settings: dict[str, Any]) -> None:
    found, ignored = settings_of_config(config_of(text))
    assert found == settings and ignored == []
    model_settings(found)  # they are valid


def test_what_is_not_supported_is_named() -> None:
    _, ignored = settings_of_config(
        config_of("""
            mystery: 1 runtime: "x" model_transaction_policy { decoupled: true }
            dynamic_batching { preserve_ordering: true
                               default_queue_policy { timeout_action: DELAY } }
            optimization { cuda { graphs: true } execution_accelerators {
                gpu_execution_accelerator { name: "warp" } } }
            model_warmup { name: "w" inputs { key: "x" value { input_data_file: "f" } } }
            backend: "tensorflow" platform: "onnxruntime_onnx"
            input { name: "x" allow_ragged_batch: true } input { name: "z" }
            instance_group { rate_limiter { priority: 2 } }
            parameters { key: "execution_mode" value { string_value: "1" } }
            parameters { key: "mine" value { string_value: "1" } }
        """)
    )
    assert ignored == [
        "mystery",
        "model_transaction_policy",
        "runtime",
        "backend 'tensorflow' (onnxruntime runs it)",
        "input 'x': allow_ragged_batch",
        "dynamic_batching.preserve_ordering",
        "default_queue_policy.timeout_action: DELAY",
        "warp (not on this machine)",
        "optimization.cuda",
        "instance_group.rate_limiter",
        "parameters.execution_mode",
        "model_warmup.input_data_file",
    ]


def test_misspelt_fields_within_messages_are_named() -> None:
    _, ignored = settings_of_config(
        config_of("""
            dynamic_batching { prefered_batch_size: [4] default_queue_policy { timeout: 1 } }
            input { name: "x" dim: 4 reshape { dims: 1 } } input { name: "z" dim: 4 }
            instance_group { cnt: 2 }
        """)
    )
    assert ignored == [
        "dynamic_batching.prefered_batch_size",
        "default_queue_policy.timeout",
        "input.dim",
        "reshape.dims",
        "instance_group.cnt",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("dynamic_batching: true", "m: dynamic_batching is True: write dynamic_batching {"),
        ("sequence_batching: 1", "m: sequence_batching is 1: write"),
        ('input: "x"', "m: input is 'x': write input {"),
        ("instance_group: [ 1 ]", "m: instance_group is 1: write"),
        ('model_warmup { inputs { key: "x" value: 1 } }', "m: inputs is 1: write"),
        ("response_cache {} response_cache {}", "m: response_cache is .*: write response_cache {"),
        ('output { name: "y" data_type: [ 1 ] }', "data_type is .1., not one value"),
        ("instance_group { kind { } }", "m: kind is {}, not one value"),
    ],
)
def test_fields_of_the_wrong_form_are_refused(text: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        settings_of_config(normalize(parse_text(text), "m"))


@pytest.mark.parametrize("size", [1 << 64, -(1 << 63) - 1, "9" * 40, 1e300, float("nan")])
def test_numbers_beyond_64_bits_are_refused(size: Any) -> None:
    with pytest.raises(OptionError, match=r"max_batch_size is .*, not a whole number of 64 bits"):
        normalize({"max_batch_size": size})


def test_null_is_an_unset_field() -> None:
    config = read_override('{"dynamic_batching": null, "input": null, "max_batch_size": null}')
    assert config == {} and settings_of_config(config) == ({}, [])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'control_input { name: "S" control { int32_false_true: [ 1, 0 ] } }',
            r"control input 'S' has the int32_false_true \[1, 0\]\nthe server fills in 0",
        ),
        (
            'state { input_name: "s" initial_state { data_file: "f" } }',
            "state 's' starts from a data_file, which is not read",
        ),
    ],
)
def test_what_would_change_answers_is_not_ignored(text: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        settings_of_config(config_of(f"sequence_batching {{ {text} }}"))


@pytest.mark.parametrize(
    "policy",
    [
        {"latest": {"num_versions": "a"}},
        {"specific": {"versions": ["a"]}},
        {"latest": {"num_versions": "9" * 5000}},
    ],
)
def test_versions_that_are_no_numbers_are_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"version_policy: .* not a whole number"):
        choose_versions(policy, [1, 2])


def test_later_settings_win_and_are_checked() -> None:
    assert model_settings({"threads": 1}, {"threads": 2}).threads == 2
    with pytest.raises(OptionError, match="threads cannot be -1: it must be greater"):
        model_settings({"threads": -1})
    with pytest.raises(OptionError, match=r"instances cannot be -1: it must be .* 1, or 'auto'"):
        model_settings({"instances": -1})


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_configuration_that_says_nothing_changes_nothing() -> None:
    instance: Instance = Doubling()
    assert configured([instance], {}, "m") == [instance]


def test_outputs_are_selected_and_sizes_narrowed() -> None:
    config = config_of("""max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [4] }
                          output { name: "z" data_type: TYPE_FP32 dims: [] }""")
    [instance] = configured([Doubling((-1, -1))], config, "m")
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, 4))]
    assert list(instance.run({"x": X})) == ["z"]
    assert list(instance.run({"x": X}, ["y"])) == ["y"]


def test_an_instance_is_compiling_within_what_is_around_it() -> None:
    inner = Doubling((-1, -1))
    [instance] = configured([inner], config_of('input { name: "x" dims: [-1, 4] }'), "m")
    around = ProcessedInstance(instance, None, None)
    assert instance is not inner
    assert not is_compiling(around)
    inner.is_compiling = True
    assert is_compiling(around)


@pytest.mark.parametrize("batched", [False, True])
def test_reshape_is_applied(batched: bool) -> None:
    inner = Doubling((-1, 1, 2, 2) if batched else (1, 1, 2, 2))
    front = "" if batched else "1, "
    config = config_of(f"""max_batch_size: {8 * batched}
        input {{ name: "x" dims: [ 4 ] reshape {{ shape: [ {front}1, 2, 2 ] }} }}
        output {{ name: "y" dims: [ 4 ] reshape {{ shape: [ {front}1, 2, 2 ] }} }}""")
    [instance] = configured([inner], config, "m")
    x = X if batched else X[0]
    assert instance.inputs[0].shape == ((-1, 4) if batched else (4,))
    np.testing.assert_array_equal(instance.run({"x": x})["y"], 2 * x)
    assert inner.shapes == [(2, 1, 2, 2) if batched else (1, 1, 2, 2)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('input { name: "w" }', "m: the model has no input 'w': it has 'x'"),
        ('input { name: "x" data_type: TYPE_INT8 dims: [-1, 4] }',
         "input 'x' is declared as TYPE_INT8, but is FP32 in the model"),
        ('input { name: "x" dims: [4] }',
         r"declared with the shape \[4\], but is \[-1, 4\] in the model"),
        ('max_batch_size: 2 input { name: "x" dims: [5] }', r"shape \[-1, 5\] \(dims are those"),
        ('input { name: "x" dims: [-1, 4] optional: true }',
         "input 'x' is declared as optional, but the model cannot run without it"),
        ('max_batch_size: 2 input { name: "x" dims: [2, 3] reshape { shape: [4] } }',
         r"input 'x' has dims \[2, 3\], which are 6 elements, but reshape makes 4 of them: \[4\]"),
        ('output { name: "yy" }', "has no output 'yy': it has|did you mean"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_in_one_line(text: str, error: str) -> None:
    with pytest.raises(OptionError, match=error) as raised:
        configured([Doubling()], config_of(text), "m")
    assert "\n" not in str(raised.value)


def test_a_fixed_first_axis_is_no_batch() -> None:
    with pytest.raises(OptionError, match="first axis of input 'x' is 1: set max_batch_size to 0"):
        configured([Doubling((1, 4))], {"max_batch_size": 2}, "m")


def test_a_missing_input_is_refused_unless_the_server_fills_it() -> None:
    instance = Doubling()
    instance.inputs.append(TensorSpec("START", "FP32", (-1, 1)))
    listed = 'input { name: "x" dims: [-1, 4] }'
    with pytest.raises(OptionError, match="the model's input 'START' is not listed"):
        configured([instance], config_of(listed), "m")
    config = config_of(listed + 'sequence_batching { control_input { name: "START" } }')
    [found] = configured([instance], config, "m")
    assert [spec.name for spec in found.inputs] == ["x", "START"]


def test_an_input_that_the_model_or_the_server_fills_may_be_optional() -> None:
    instance = Doubling()
    bias = TensorSpec("bias", "FP32", (2, 3), is_optional=True, has_default=True)
    instance.inputs += [TensorSpec("mask", "FP32", (-1, 4)), bias]
    config = config_of("""max_batch_size: 8 input [ { name: "x" dims: [4] },
        { name: "mask" dims: [4] optional: true }, { name: "bias" dims: [2, 3] optional: true } ]
        """)
    [found] = configured([instance], config, "m", {"mask"})
    assert found.inputs[2] == bias
    batching = SimpleNamespace(max_size=8, axes={"x": 0, "mask": 0})
    full = completed_config("m", ONNX, config, ModelSettings(), found.inputs, [], batching)
    assert [each["dims"] for each in full["input"]] == [[4], [4], [2, 3]]
    fewer = {**config, "input": config["input"][:2]}
    [hidden] = configured([instance], fewer, "m", {"mask"})
    assert [spec.name for spec in hidden.inputs] == ["x", "mask"]


def test_the_completed_configuration() -> None:
    inputs, outputs = [TensorSpec("x", "BYTES", (-1, 4))], [TensorSpec("y", "FP32", (4, -1))]
    batching = SimpleNamespace(max_size=8, axes={"x": 0, "y": 1})
    settings = ModelSettings(instances=2, batch_delay=1e-3, labels={"y": "l.txt"})
    given = normalize({"parameters": {"k": {"string_value": "v"}}, "instance_group": [{"gpus": 1}]})
    found = completed_config("m", ONNX, given, settings, inputs, outputs, batching, "model.onnx")
    assert found["name"] == "m" and found["backend"] == "onnxruntime"
    assert found["max_batch_size"] == 8
    assert found["input"][0]["dims"] == [4] and found["input"][0]["data_type"] == "TYPE_STRING"
    assert found["output"][0]["dims"] == [4] and found["output"][0]["label_filename"] == "l.txt"
    assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 1000
    assert found["parameters"] == {"k": {"string_value": "v"}}
    assert found["instance_group"][0]["count"] == 2 and found["instance_group"][0]["gpus"] == [1]
    plain = completed_config("m", ONNX, None, settings, inputs, outputs, None)
    assert plain["max_batch_size"] == 0 and plain["input"][0]["dims"] == [-1, 4]
    assert "dynamic_batching" not in plain


@pytest.mark.parametrize("scheduler", ["sequence_batching { direct {} }", "dynamic_batching {}"])
def test_the_completed_configuration_has_one_scheduler(scheduler: str) -> None:
    given = config_of(f"max_batch_size: 8 {scheduler}")
    settings = ModelSettings(sequence_controls={"s": "start"} if "dynamic" in scheduler else {})
    inputs = [TensorSpec("x", "FP32", (-1, 4))]
    batching = SimpleNamespace(max_size=8, axes={"x": 0})
    found = completed_config("m", ONNX, given, settings, inputs, [], batching)
    assert [key for key in found if key.endswith("_batching")] == [scheduler.split()[0]]
    check_fields(found, "m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('optimization { graph { level: "high" } }',
         "m: optimization.graph.level: 'high' is not a whole number"),
        ("max_batch_size: 99999999999", "m: max_batch_size: Value out of range"),
        ("version_policy { latest {} all {} }",
         "m: version_policy: only one policy_choice can be given"),
        ('parameters { key: "a" value { string_value: 3 } }',
         "m: parameters.string_value: it must be text"),
        ("dynamic_batching {} sequence_batching {}", "m: only one scheduling_choice can be given"),
    ],
)  # fmt: skip
def test_values_that_a_field_cannot_have_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_fields(config_of(text), "m")
    check_fields(config_of("mystery { a: 1 } optimization { graph { level: 1 } }"), "m")


@pytest.mark.parametrize("value", ["yes", '"false"', "2", "0.5"])
def test_flags_are_true_or_false(value: str) -> None:
    with pytest.raises(OptionError, match=r"m: enable is .*, not true or false"):
        config_of(f"response_cache {{ enable: {value} }}")
    for written, expected in (("1", True), ("0", False), ("t", True), ("False", False)):
        found = config_of(f"response_cache {{ enable: {written} }}")
        assert found == {"response_cache": {"enable": expected}}


def test_a_number_of_instances_beyond_reason_is_refused() -> None:
    config = config_of("instance_group { count: 100000000000 }")
    with pytest.raises(OptionError, match="less than or equal to 1024"):
        model_settings(settings_of_config(config)[0])


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/labels.txt"])
def test_labels_outside_of_the_model_are_refused(name: str) -> None:
    """Clients may give a configuration, and read its labels."""
    config = read_override(json.dumps({"output": [{"name": "y", "label_filename": name}]}))
    with pytest.raises(OptionError, match="is not in the model's folder\ngive its path"):
        settings_of_config(config)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({}, 300), ({"timeout": 2.0}, 30), ({"timeout": 60.0}, 120), ({"stuck_after": 7}, 7),
     ({"stuck_after": None, "timeout": 2.0}, math.inf)],
)  # fmt: skip
def test_how_long_a_run_may_take(settings: dict[str, Any], limit: float) -> None:
    assert ModelSettings(**settings).run_limit == limit
