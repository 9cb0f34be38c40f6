"""Check the values of a configuration against the fields of Triton's ModelConfig."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from onward.errors import OptionError
from onward.lazy import LazyModule

_messages: Any = LazyModule("onward.serving.grpc.grpc_messages")
_OUTER = re.compile(r"Failed to parse (\w+) field: ")
_WORDS = (  # protobuf's, and ours
    (re.compile(r"invalid literal for int\(\) with base 10: (.*)"), r"\1 is not a whole number"),
    (re.compile(r"expected string or bytes-like object, got .*"), "it must be text"),
    (re.compile(r"Message type .* should not have multiple \"(\w+)\" oneof fields.*"),
     r"only one \1 can be given"),
)  # fmt: skip


def check_fields(config: Mapping[str, Any], where: str) -> None:
    """Raise OptionError for a value that its field cannot have: clients ask for all of them.

    Fields that ModelConfig does not have are ignored, as they are elsewhere.
    """
    try:
        _messages.from_json("inference.ModelConfig", config)
    except json_format.ParseError as error:
        fields, reason = _OUTER.findall(str(error)), _OUTER.sub("", str(error)).rstrip(".")
        for pattern, words in _WORDS:
            reason = pattern.sub(words, reason)
        place = f"{'.'.join(fields)}: " if fields else ""
        raise OptionError(f"{where}: {place}{reason}") from None
