"""Arguments that several verbs share: models, feeds, providers, sizes, threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.providers.provider_names import short_name

if TYPE_CHECKING:
    from onward import python_code
    from onward.compress.quality import OwnMetric
    from onward.providers import choose, provider_text
    from onward.providers.provider_text import NamedProvider
    from onward.runner.metrics.metric import Metric
else:  # they load onnxruntime, which not every verb needs
    choose = LazyModule("onward.providers.choose")
    provider_text = LazyModule("onward.providers.provider_text")
    python_code = LazyModule("onward.python_code")

MODELS = (".onnx", ".ort", ".onnxtxt", ".textproto", ".json")


def complete_models(incomplete: str) -> list[str]:
    """Complete the path of a model."""
    return complete_paths(incomplete, MODELS)


def complete_feeds(incomplete: str) -> list[str]:
    """Complete the path of a file of feeds, also after `name=`."""
    name, equals, rest = incomplete.rpartition("=")
    suffixes = (".npy", ".npz", ".json", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
    return [f"{name}{equals}{path}" for path in complete_paths(rest, suffixes)]


def complete_paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Paths that continue what was typed: files with these suffixes, folders with a slash."""
    folder, _, start = incomplete.rpartition("/")
    shown = f"{folder}/" if "/" in incomplete else ""
    try:
        entries = sorted(os.scandir(os.path.expanduser(shown) or "."), key=lambda e: e.name)
    except OSError:
        return []
    hidden = start.startswith(".")
    return [
        f"{shown}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(start)
        and (hidden or not entry.name.startswith("."))
        and (entry.is_dir() or entry.name.lower().endswith(suffixes))
    ]


def complete_providers(incomplete: str) -> list[str]:
    """Complete the short name of a provider of this machine."""
    return [name for name in map(short_name, choose.available()) if name.startswith(incomplete)]


Model = Annotated[
    Path, typer.Argument(help="The model's file.", autocompletion=complete_models, metavar="MODEL")
]
FeedFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FEEDS]...", help="Files of feeds, as for --feed.", autocompletion=complete_feeds
    ),
]
Feeds = Annotated[
    list[str] | None,
    typer.Option(
        "--feed",
        "-f",
        metavar="[NAME=]FILE",
        help="A file to feed: .npy, .json or an image for one input (NAME=FILE), or an .npz or "
        ".json of several.",
        autocompletion=complete_feeds,
    ),
]
Providers = Annotated[
    list[str] | None,
    typer.Option(
        "--provider",
        "-p",
        metavar="NAME",
        help="A provider, such as cpu, torch or reference; options follow: torch:device=cpu. "
        "Repeat it for several.",
        autocompletion=complete_providers,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size", "-s", metavar="NAME=N", help="Fix a dynamic dimension: batch=8, or image:0=8."
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="The seed of random feeds.")]
Threads = Annotated[
    int,
    typer.Option("--threads", min=0, help="Threads inside an operator; 0: the engine's default."),
]
Limit = Annotated[
    float,
    typer.Option(
        "--limit",
        min=0.1,
        metavar="SECONDS",
        help="Time for one candidate in addition to its measuring; then it is stopped.",
    ),
]
OwnOrNamedMetric = Annotated[
    str | None,
    typer.Option(
        help="A metric, such as accuracy; or your function that gets one which runs the model, as "
        "file.py:function or package.module:function."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def feed_paths(files: list[str] | None, feeds: list[str] | None) -> list[str]:
    """The files given after the model, then those of --feed."""
    return [*(files or ()), *(feeds or ())]


def read_sizes(texts: list[str] | None) -> dict[str, int]:
    """Read sizes: batch=8 as {"batch": 8}.

    >>> read_sizes(["batch=8", "image:2=224"])
    {'batch': 8, 'image:2': 224}
    """
    sizes = {}
    for text in (part for given in texts or () for part in given.split(",")):
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.strip().isdecimal():
            raise OptionError(f"--size takes NAME=N, such as batch=8, not {text!r}")
        sizes[name.strip()] = int(number)
    return sizes


def read_providers(texts: list[str] | None) -> list[NamedProvider]:
    """Read providers, such as torch:device=cpu,mode=...: full names, each with its options."""
    return [provider_text.read_provider(text) for text in texts or ()]


def read_metric(text: str | None) -> str | Metric | OwnMetric | None:
    """A metric's name, or what file.py:attribute and package.module:attribute name.

    A class is called without arguments.
    """
    if text is None or not python_code.is_named(text):
        if text is not None and text.endswith(".py"):
            raise OptionError(f"--metric {text} names no function\nwrite {text}:function")
        return text
    found = python_code.load_attribute(text)
    if not isinstance(found, type):
        return cast("Metric | OwnMetric", found)
    try:
        return cast("Metric | OwnMetric", found())
    except Exception as error:  # the user's class
        raise OptionError(
            f"--metric {text}: the class cannot be called without arguments: "
            f"{type(error).__name__}: {error}\nname an object of it"
        ) from error
