"""SessionOptions and RunOptions: names and values are checked when they are set."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import onward
from onward.errors import EntryMissing, OnwardError, OptionAttributeError, OptionError
from onward.providers.options import RunOptions, SessionOptions

KINDS = [
    (SessionOptions, onnxruntime.SessionOptions),
    (RunOptions, onnxruntime.RunOptions),
]


@pytest.mark.parametrize(
    ("options", "name", "hint"),
    [
        (SessionOptions(), "intra_op_threads", r"did you mean 'intra_op_num_threads'"),
        (SessionOptions(), "graph_optimisation_level", r"did you mean 'graph_optimization_level'"),
        (SessionOptions(), "zzz", r"there are 'intra_op_num_threads', 'inter_op_num_threads'"),
        (SessionOptions(), "add_initializr", "did you mean 'add_initializer'"),
        (RunOptions(), "terminated", "did you mean 'terminate'"),
        (RunOptions(), "time_out", "did you mean 'timeout'"),
    ],
)
def test_unknown_attribute_suggests_similar_names(options: Any, name: str, hint: str) -> None:
    law = rf"{type(options).__name__} has no attribute '{name}'\n{hint}"
    with pytest.raises(AttributeError, match=law):
        setattr(options, name, 1)
    with pytest.raises(OnwardError, match=law):
        getattr(options, name)
    assert not hasattr(options, name)


def test_method_cannot_be_replaced() -> None:
    with pytest.raises(OptionAttributeError, match="no attribute 'add_initializer'"):
        SessionOptions().add_initializer = 1  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "intra_op_num_threads",
            -1,
            r"must be a whole number, at least 0, not -1\ngive 0 to let the",
        ),
        ("intra_op_num_threads", 1.5, "must be a whole number, at least 0, not 1.5"),
        ("intra_op_num_threads", "4", "must be a whole number, at least 0, not '4'"),
        ("inter_op_num_threads", None, "must be a whole number, at least 0, not None"),
        ("inter_op_num_threads", 1 << 40, "must be a whole number, at least 0, not 1099511627776"),
        (
            "graph_optimization_level",
            7,
            r"must be a member of GraphOptimizationLevel, not 7\ngive one of ORT_D",
        ),
        (
            "graph_optimization_level",
            "all",
            "must be a member of GraphOptimizationLevel, not 'all'",
        ),
        ("graph_optimization_level", onward.ExecutionMode.ORT_PARALLEL, "GraphOptimizationLevel"),
        (
            "graph_optimization_level",
            onnxruntime.ExecutionMode.ORT_PARALLEL,
            "must be a member of GraphOptimiz",
        ),
        (
            "execution_mode",
            True,
            r"must be a member of ExecutionMode, not True\ngive one of ORT_SEQUENTIAL \(0",
        ),
        ("execution_order", 3, "must be a member of ExecutionOrder, not 3"),
        ("log_severity_level", 5, r"must be a whole number from -1 to 4, not 5\ngive 0 verbose, 1"),
        ("enable_profiling", "yes", r"must be True or False, not 'yes'$"),
        ("logid", 3, "must be a string, not 3"),
        (
            "optimized_model_filepath",
            None,
            r"must be a path, not None\ngive a path, or '' for none",
        ),
        ("memory_limit", 0, r"must be a number of bytes above 0, not 0\ngive None for no limit"),
        ("memory_limit", 1.5, "must be a number of bytes above 0, not 1.5"),
        ("run_timeout", -1, "must be a number of seconds above 0, or None, not -1"),
        ("run_timeout", "1", "must be a number of seconds above 0, or None, not '1'"),
        ("open_timeout", float("inf"), "must be a number of seconds above 0, or None, not inf"),
        (
            "result_cache_bytes",
            -1,
            r"must be a whole number from 0 to \d+, not -1\ngive 0 for no c",
        ),
        ("limits", 3, r"must be of the class ModelLimits, not 3\nsuch as ModelLimits\(nodes"),
        ("shared", 3, r"must be a SharedMemory or None, not 3\nsuch as SharedMemory\(\)"),
        ("free_dimensions", 3, r"must be a dictionary, not 3\nsuch as {'batch': 1}"),
        (
            "free_dimensions",
            {"n": "2"},
            r"free_dimensions\['n'\] must be a whole number, at least -1",
        ),
        ("config_entries", {"n": 2}, r"config_entries\['n'\] must be a string, not 2"),
        (
            "config_entries",
            {2: "n"},
            r"a name in SessionOptions.config_entries must be a string, not",
        ),
        (
            "initializers",
            {"w": np.zeros(2)},
            r"'w'\] must be an OrtValue, not ndarray\nmake one: Or",
        ),
        ("custom_op_libraries", "a.so", r"must be a list, not 'a.so'\nwrite \['a.so'\]"),
    ],
)
def test_invalid_session_option_is_refused(name: str, value: Any, message: str) -> None:
    options = SessionOptions()
    before = getattr(options, name)
    with pytest.raises(OptionError, match=message):
        setattr(options, name, value)
    assert getattr(options, name) == before
    with pytest.raises(OptionError, match=message):
        SessionOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("timeout", 0, "RunOptions.timeout must be a number of seconds above 0, or None, not 0"),
        ("log_severity_level", 9, "must be a whole number from -1 to 4, not 9"),
        ("terminate", "now", "RunOptions.terminate must be True or False, not 'now'"),
        ("shrink_arena", [], "must be True or False"),
        ("logid", None, "must be a string, not None"),
    ],
)
def test_invalid_run_option_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        setattr(RunOptions(), name, value)


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        ("add_session_config_entry", ("", "1"), "key of a configuration entry is empty\ngive one"),
        ("add_session_config_entry", ("a", 1), "configuration entry 'a' must be a string, not 1"),
        ("add_session_config_entry", ("a" * 1025, ""), "at most 1024 characters, not 1025"),
        ("add_session_config_entry", ("a", "b" * 8193), "at most 8192 characters, not 8193"),
        (
            "add_free_dimension_override_by_name",
            ("n", "2"),
            "size of dimension 'n' must be a whole",
        ),
        (
            "add_free_dimension_override_by_name",
            (1, 2),
            "name of a dimension must be a string, not 1",
        ),
        (
            "add_free_dimension_override_by_denotation",
            ("n", -2),
            "'n' must be a whole number, at least",
        ),
        ("add_initializer", ("w", [1.0]), "initializer 'w' must be an OrtValue, not list"),
        ("register_custom_ops_library", ("/no/lib.so",), "no custom operator library at '/no/lib"),
        (
            "register_custom_ops_library",
            (None,),
            "the path of a custom operator library must be a path",
        ),
    ],
)
def test_invalid_argument_of_a_method_is_refused(call: str, given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        getattr(SessionOptions(), call)(*given)


def test_missing_config_entry_is_a_runtime_error() -> None:
    options, run_options = SessionOptions(), RunOptions()
    options.add_session_config_entry("session.x", "1")
    with pytest.raises(RuntimeError, match="no session configuration entry 'session_y' was set"):
        options.get_session_config_entry("session_y")
    with pytest.raises(EntryMissing, match=r"no run configuration entry 'a' was set\nset are none"):
        run_options.get_run_config_entry("a")


def accepted(native: type, name: str, value: Any) -> bool:
    try:
        setattr(native(), name, value)
    except TypeError:
        return False
    return True


VALUES = [
    0, 1, 2, True, False, None, np.int64(1), np.uint8(0), np.True_, np.float32(1), 0.0, "", b"x",
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    onnxruntime.ExecutionMode.ORT_PARALLEL,
    onnxruntime.ExecutionOrder.PRIORITY_BASED,
]  # fmt: skip


@pytest.mark.parametrize(("ours", "native"), KINDS)
def test_values_that_onnxruntime_accepts_are_accepted(ours: type, native: type) -> None:
    settings = [n for n in dir(native) if isinstance(vars(native).get(n), property)]
    assert "log_severity_level" in settings
    taken = 0
    for name in settings:
        for value in VALUES:
            if accepted(native, name, value):
                kept, theirs = ours(), native()
                setattr(kept, name, value)
                setattr(theirs, name, value)
                wanted = getattr(theirs, name)
                assert getattr(kept, name) == (wanted if isinstance(wanted, str) else int(wanted))
                taken += 1
    assert taken > 3 * len(settings)


@pytest.mark.parametrize(("ours", "native"), KINDS)
def test_every_name_of_onnxruntime_exists_or_names_the_alternative(
    ours: type, native: type
) -> None:
    options = ours()
    for name in (name for name in dir(native) if not name.startswith("_")):
        if hasattr(options, name):
            continue
        with pytest.raises(AttributeError, match=rf"onward.{ours.__name__} has no '{name}'\n\w+"):
            getattr(options, name)


def test_options_are_copied_from_onnxruntimes() -> None:
    native = onnxruntime.SessionOptions()
    native.intra_op_num_threads = 3
    native.enable_mem_reuse = False
    native.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    native.logid = "here"
    options = SessionOptions.of(native)
    assert (options.intra_op_num_threads, options.enable_mem_reuse) == (3, False)
    assert options.execution_mode is onward.ExecutionMode.ORT_PARALLEL
    assert (options.logid, options.native) == ("here", native)
    native.intra_op_num_threads = -3
    with pytest.raises(
        OptionError, match="intra_op_num_threads must be a whole number, at least 0"
    ):
        SessionOptions.of(native)


def test_path_objects_are_accepted(tmp_path: Path) -> None:
    options = SessionOptions(optimized_model_filepath=tmp_path / "o.onnx")  # type: ignore[arg-type]
    assert options.optimized_model_filepath == str(tmp_path / "o.onnx")


def test_dimension_of_minus_one_stays_open() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("n", np.int64(2))
    assert options.free_dimensions == {"n": 2}
    options.add_free_dimension_override_by_name("n", -1)
    assert options.free_dimensions == {}


def test_copy_and_pickle() -> None:
    options = SessionOptions(intra_op_num_threads=2, config_entries={"a": "1"})
    assert copy.copy(options) == copy.deepcopy(options) == options
    assert pickle.loads(pickle.dumps(options)) == options


def test_add_provider() -> None:
    op = onward.OpBuilder()
    proto = op.model(y=op.Neg(op.input("x", "float32", (2,))))
    options = SessionOptions()
    assert not options.has_providers()
    options.add_provider("ReferenceExecutionProvider", {})
    assert options.has_providers()
    session = onward.InferenceSession(proto, options)
    assert session.get_providers()[0] == "ReferenceExecutionProvider"
    session = onward.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
