"""Merge the settings of `onward serve`: defaults < file < environment variables < flags.

merged = merge_layers(file_layer("serve.toml"), environment_layer(variables), flag_layer(given))
merged.server, merged.model, merged.places[("http_port",)]

A file has the settings of the server and of all models at its top, and a table for each model that
differs: [models.NAME]. Nothing here reads the environment: variables are given as a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.configs.check_settings import make_settings
from onward.configs.setting_kind import SettingsClass, check_setting_name, setting_kind
from onward.configs.setting_text import check_setting, is_none, read_json, read_list, read_mapping
from onward.configs.settings_files import read_settings_file
from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.serving.settings import ModelSettings, ServingSettings

PREFIX = "ONWARD_SERVE_"
SECRET = ("api_keys", "admin_keys")
HIDDEN = "(hidden)"  # what --show-config writes instead of a key

Key = tuple[str, ...]  # ("http_port",) or ("models", "digits", "max_batch_size")

# Kubernetes gives every pod such variables of a service that is called onward-serve.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP)(_.*)?")


@dataclass(frozen=True)
class Given:
    """A checked value, and where it was given: a file's line, a variable, a flag."""

    value: Any
    place: str


Layer = Mapping[Key, Given]


@dataclass(frozen=True)
class MergedSettings:
    """All settings, and where each that is not a default was given."""

    server: ServingSettings
    model: ModelSettings  # for all models; its `model_fields_set` are those that were given
    places: Mapping[Key, str]


def file_layer(path: str | Path) -> dict[Key, Given]:
    """The settings of a TOML or YAML file."""
    file = read_settings_file(path)
    layer: dict[Key, Given] = {}
    for name, value in file.values.items():
        if name != "models":
            place = file.place(name)
            layer[(name,)] = _given(name, value, place, check_value)
            continue
        for model, table in _tables(value, file.place(name)):
            for inner, each in table.items():
                place = file.place(str(inner), after=model)
                key = ("models", model, str(inner))
                layer[key] = _given(str(inner), each, place, check_value, model)
    return layer


def environment_layer(variables: Mapping[str, str]) -> dict[Key, Given]:
    """The settings of variables such as ONWARD_SERVE_HTTP_PORT; an empty one is not given.

    ONWARD_SERVE_MODELS__NAME__MAX_BATCH_SIZE is one of a model; NAME in capitals is a name in
    small letters.
    """
    layer: dict[Key, Given] = {}
    for variable, text in variables.items():
        rest = variable.removeprefix(PREFIX)
        if rest == variable or not text or _is_service_link(rest, text):
            continue
        first, *inner = rest.split("__")
        if first.lower() != "models":
            layer[(rest.lower(),)] = _given(rest.lower(), text, variable, read_text)
        elif len(inner) < 2:
            raise OptionError(
                f"{variable} names no setting of a model\n"
                f"write {PREFIX}MODELS__NAME__MAX_BATCH_SIZE"
            )
        else:
            name = "__".join(inner[:-1])
            model = name.lower() if name.isupper() else name
            setting = inner[-1].lower()
            given = _given(setting, text, variable, read_text, model)
            layer[("models", model, setting)] = given
    return layer


def flag_layer(given: Mapping[str, Any], models: list[str] | None = None) -> dict[Key, Given]:
    """The settings of flags that are read already, and of --models NAME.SETTING=VALUE."""
    layer: dict[Key, Given] = {
        (name,): Given(value, f"--{name.replace('_', '-')}") for name, value in given.items()
    }
    for each in models or []:
        path, equals, text = each.partition("=")
        model, dot, setting = path.rpartition(".")
        if not (equals and dot and model and setting):
            raise OptionError(
                f"--models takes NAME.SETTING=VALUE, not {each!r}\n"
                "such as --models digits.max_batch_size=8"
            )
        value = _given(setting, text, "--models", read_text, model)
        layer[("models", model, setting)] = value
    return layer


def merge_layers(*layers: Layer) -> MergedSettings:
    """Later layers replace single settings of earlier ones."""
    found: dict[Key, Given] = {}
    for layer in layers:
        found.update(_named_as_before(layer, found))
    top = {key[0]: given.value for key, given in found.items() if len(key) == 1}
    models: dict[str, dict[str, Any]] = {}
    for key, given in found.items():
        if len(key) == 3:
            models.setdefault(key[1], {})[key[2]] = given.value
    server = {name: value for name, value in top.items() if name in ServingSettings.model_fields}
    model = {name: value for name, value in top.items() if name in ModelSettings.model_fields}
    merged = MergedSettings(
        make_settings(ServingSettings, server, {"models": _plain_tables(models)}),
        make_settings(ModelSettings, model),
        {key: given.place for key, given in found.items()},
    )
    _check_together(merged)
    return merged


def settings_of_model(name: str, server: ServingSettings, defaults: ModelSettings) -> ModelSettings:
    """The settings of one model: its own, else those for all models."""
    own = server.models.get(name, {})
    return make_settings(ModelSettings, defaults.model_dump(exclude_unset=True), own)


def check_value(settings: SettingsClass, name: str, value: Any) -> Any:
    """A value of a file, checked; the word none is None where there may be none."""
    if is_none(settings, name, value):
        return None
    return check_setting(settings, name, value)


def read_text(settings: SettingsClass, name: str, text: str) -> Any:
    """A value of a variable: lists and pairs with commas (4,8 or a=1,b=2), or JSON."""
    kind = setting_kind(settings, name)
    if is_none(settings, name, text):
        return None
    is_json = text.lstrip()[:1] in ("{", "[")
    if kind.is_mapping:
        if is_json or kind.has_tables:
            return check_setting(settings, name, read_json(name, text))
        return read_mapping(settings, name, text.split(","))
    if kind.is_list:
        if is_json and not kind.has_tables:
            return check_setting(settings, name, read_json(name, text))
        return read_list(settings, name, [text])
    return check_setting(settings, name, text)


def _given(
    name: str,
    value: Any,
    place: str,
    read: Callable[[SettingsClass, str, Any], Any],
    model: str = "",
) -> Given:
    """A setting of the server, or of a model, checked; errors begin with the place."""
    settings = _owner(name, model)
    try:
        check_name(name, model)
        return Given(read(settings, name, value), place)
    except OptionError as error:
        text = str(error)
        if name in SECRET:  # its value is not for the screen
            text = f"{name} must be a list of keys\nwrite {name} = [...]"
        raise OptionError(f"{place}: {text}") from None


def check_name(name: str, model: str = "") -> None:
    """Refuse a name that is not a setting, with the nearest ones."""
    if model:
        check_setting_name(ModelSettings, name)
        return
    known = [*ServingSettings.model_fields, *ModelSettings.model_fields]
    if name not in known:
        raise OptionError(f"there is no setting {name!r}\n{suggest_names(name, known)}")


def _owner(name: str, model: str) -> SettingsClass:
    return ServingSettings if not model and name in ServingSettings.model_fields else ModelSettings


def _tables(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    tables = value if isinstance(value, Mapping) else {"": value}
    for model, table in tables.items():
        if not isinstance(table, Mapping):
            raise OptionError(
                f"{place}: models has no table for a model, but {table!r}\n"
                "write [models.NAME], and its settings below"
            )
        yield str(model), table


def _named_as_before(layer: Layer, found: Layer) -> dict[Key, Given]:
    """A layer whose models are spelled as in earlier layers: variables lose capitals."""
    spelled = {key[1].lower(): key[1] for key in found if len(key) == 3}

    def key_of(key: Key) -> Key:
        if len(key) != 3 or key[1] != key[1].lower():
            return key
        return (key[0], spelled.get(key[1], key[1]), key[2])

    return {key_of(key): given for key, given in layer.items()}


def _plain_tables(models: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The tables of models as plain values."""
    return {
        name: make_settings(ModelSettings, table).model_dump(exclude_unset=True)
        for name, table in models.items()
    }


def _is_service_link(rest: str, text: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(rest)) or (rest == "PORT" and "://" in text)


def _check_together(merged: MergedSettings) -> None:
    """Refuse settings that do not fit each other."""
    server, places = merged.server, merged.places
    for name in SECRET:
        if HIDDEN in getattr(server, name):
            raise OptionError(
                f"{places[(name,)]}: {name} is hidden, as --show-config writes it\n"
                f"write the keys, or give them in {PREFIX}{name.upper()}"
            )
    for name, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if getattr(server, name) is not None and getattr(server, other) is None:
            raise OptionError(f"{places[(name,)]}: {name} is given without {other}\ngive both")
    ports: dict[int, str] = {}
    for name in ("http_port", "grpc_port", "admin_port"):
        port = getattr(server, name)
        if port and port in ports:
            raise OptionError(
                f"{name} and {ports[port]} are both {port}\n"
                f"change one: --{name.replace('_', '-')} {port + 1}"
            )
        if port:
            ports[port] = name
