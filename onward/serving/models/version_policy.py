"""Choose the versions of a model that are served, by Triton's version policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onward.errors import OptionError
from onward.serving.models.model_config import whole


def choose_versions(policy: Mapping[str, Any], numbers: Iterable[int]) -> list[int]:
    """The versions to serve, the lowest first.

    >>> choose_versions({"latest": {"num_versions": 2}}, [1, 2, 5])
    [2, 5]
    >>> choose_versions({"specific": {"versions": [1, 3]}}, [1, 2])
    [1]
    """
    present = sorted(numbers)
    match dict(policy):
        case {"all": _}:
            return present
        case {"specific": {"versions": list(versions)}}:
            named = {whole(each, "versions", "version_policy") for each in versions}
            return [number for number in present if number in named]
        case {"latest": Mapping() as latest}:
            count = whole(latest.get("num_versions") or 1, "num_versions", "version_policy")
            return present[-count:] if count > 0 else []
        case {}:
            return present[-1:]
    raise OptionError(
        f"unknown version policy {dict(policy)!r}\n"
        "give latest { num_versions: 1 }, all { } or specific { versions: [1] }"
    )
