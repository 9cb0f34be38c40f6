"""Translate Python hints in error messages to options of the command line."""

from __future__ import annotations

import re
from typing import Any

from onward.message_text import has_initials

_LIMITS = (
    "the command line has fixed limits: load a model that you trust from Python, with higher ones"
)

# a pattern of the library's second line: the hint for the command line
_TRANSLATIONS = {
    r'give the cotangent a name: outputs=\{"(.+)": "(.+)"\}': r"name its cotangent: --output \1=\2",
    r'give it another name: outputs=\{"(.+)": "(.+)"\}': (r"give it another name: --output \1=\2"),
    r"add one with @gradient\(.*": "choose a --wrt that lies behind it, or --output before it",
    r"give each: sizes=.*": "give each with --size NAME=N, or --size INPUT:PLACE=N",
    r"plan with feeds instead of sizes": "its size cannot be set with --size",
    r"list a provider that has it, or leave fallback enabled": (
        "onward ops lists which provider runs it; give it with --provider"
    ),
    r"list a provider that runs (.*)": r"give --provider one that runs \1",
    r"list another provider after \w+": "give another --provider after it",
    r"put CPUExecutionProvider before it": "give --provider cpu before it",
    r"pair them: names=.*": "pair them with --map NAME=OTHER",
    r"list one first, such as .*": "give --provider cpu first",
    r"feed it yourself": "feed it with --feed NAME=FILE",
    r'to choose among a few: \[\("auto".*': (
        "give only --provider auto; onward tune chooses among those of its --provider"
    ),
    r"register its custom operators, or name it in ModelLimits\.allow_domains": (
        "onward inspect shows it; custom operators are registered in Python"
    ),
    r"if you trust this model, (?:set|raise) ModelLimits\.\w+, or (.*)": rf"\1; {_LIMITS}",
    r"if you trust this model, (?:set|raise) ModelLimits\.\w+": _LIMITS,
    r"raise the limit only for a model that you trust": _LIMITS,
}
# settings of a training that hints name as arguments, and which are flags here
_SETTING = re.compile(
    r"\b(new_head|validation_split|skip_broken|types|ignore_columns|ignore_index|target|inputs)="
    r"(\{.*?\}|\[.*?\]|'.*?'|True|-?\d+)"
)
# an argument, a call, a decorator or an attribute of a class: Python, not options
_PYTHON = re.compile(r"""\b\w+=[\[{("'A-Z]|\w\(|@\w|\b[A-Z]\w+\.[a-z]\w*\b""")

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")  # names in a model may look like anything


def translate_hints(message: str) -> str:
    """A message whose hints (every line after the first) are for the command line.

    >>> translate_hints('output is not a scalar\\ngive the cotangent a name: outputs={"y": "dy"}')
    'output is not a scalar\\nname its cotangent: --output y=dy'
    """
    first, *hints = message.splitlines() or [""]
    return "\n".join([first, *filter(None, map(_translate, hints))])


def suggest_option(error: Any) -> None:
    """Let typer's error of an unknown option suggest the one with these initials: --lr."""
    if not hasattr(error, "possibilities") or getattr(error, "ctx", None) is None:
        return
    known = [name for each in error.ctx.command.params for name in each.opts]
    meant = [name for name in known if has_initials(name, str(error.option_name))]
    error.possibilities = meant or error.possibilities


def _translate(hint: str) -> str:
    """Translate one hint; empty if it is Python without a translation."""
    for pattern, words in _TRANSLATIONS.items():
        if re.fullmatch(pattern, hint.strip()):
            return re.sub(pattern, words, hint.strip())
    hint = _SETTING.sub(_to_flag, hint)
    has_option = "--" in hint
    return hint if has_option or not _PYTHON.search(_QUOTED.sub("", hint)) else ""


def _to_flag(found: re.Match[str]) -> str:
    """A setting as a flag: types={'zip': 'text'} is --types zip=text."""
    flag, value = f"--{found[1].replace('_', '-')}", found[2]
    if value == "True":
        return flag
    plain = re.sub(r"[\[\]{}'\"]", "", value.replace(": ", "=").replace(", ", "+"))
    return f"{flag} {'NAME' if plain == '...' else plain}"
