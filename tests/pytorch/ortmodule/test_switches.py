"""The ORTMODULE_* environment variables."""

from __future__ import annotations

import pytest
from torch import nn

from onward.errors import OptionError
from onward.training import ortmodule
from onward.training.ortmodule import ORTModule, switches
from onward.training.ortmodule._fallback import _FallbackPolicy
from onward.training.ortmodule.options import _RuntimeOptions, _SkipCheck


def test_policies_are_joined_by_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    skips = "SKIP_CHECK_DEVICE|SKIP_CHECK_BUILD_GRADIENT"
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", skips)
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "True")
    options = _RuntimeOptions()
    wanted = _SkipCheck.SKIP_CHECK_DEVICE | _SkipCheck.SKIP_CHECK_BUILD_GRADIENT
    assert options.skip_check == wanted and options.fallback_retry
    assert options.fallback_policy == _FallbackPolicy.FALLBACK_DISABLE
    assert not _SkipCheck.SKIP_CHECK_DISABLED.is_set(_SkipCheck.SKIP_CHECK_DISABLED)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLED", "no value 'FALLBACK_DISABLED'\n.*BLE"),
        ("ORTMODULE_FALLBACK_RETRY", "maybe", "must be true or false, not 'maybe'"),
        ("ORTMODULE_ONNX_OPSET_VERSION", "new", "must be a whole number, not 'new'"),
    ],
)
def test_wrong_values_are_refused(
    name: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=text):
        _RuntimeOptions()


def test_constants_of_the_package_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ortmodule, "ONNX_OPSET_VERSION", 14)
    assert _RuntimeOptions().onnx_opset_version == 14
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", "13")
    assert _RuntimeOptions().onnx_opset_version == 13


def test_switches_without_effect_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switches, "_said", set())
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    ORTModule(nn.Linear(1, 1))
    ORTModule(nn.Linear(1, 1))
    assert caplog.text.count("ORTMODULE_MEMORY_OPT_LEVEL has no effect: a module recomputes") == 1


def test_a_constant_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ortmodule._defined_from_envvar("ORTMODULE_TRY", 3) == 3
    monkeypatch.setenv("ORTMODULE_TRY", "4")
    assert ortmodule._defined_from_envvar("ORTMODULE_TRY", 3) == 4
    monkeypatch.setenv("ORTMODULE_TRY", "four")
    with pytest.warns(UserWarning, match="Unable to overwrite constant 'ORTMODULE_TRY'"):
        assert ortmodule._defined_from_envvar("ORTMODULE_TRY", 3) == 3
