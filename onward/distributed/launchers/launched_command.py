"""LaunchedCommand: what each process of a run executes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onward.errors import FileMissing, OptionError


@dataclass(frozen=True)
class LaunchedCommand:
    """What each process of a run executes: a module, a script of Python, or another program.

    Attributes:
        kind: "module", "script" or "program"
        words: its name and its arguments, as they were given
    """

    kind: str
    words: tuple[str, ...]

    def here(self) -> list[str]:
        """The command on this machine, with this Python."""
        if self.kind == "program":
            return list(self.words)
        flag = ["-m"] if self.kind == "module" else []
        return [sys.executable, "-u", *flag, *self.words]

    def as_given(self) -> list[str]:
        """What follows the options of `onward launch`."""
        if self.kind != "module":
            return list(self.words)
        if self.words[:2] == ("onward", "train"):
            return list(self.words[1:])
        return ["-m", *self.words]

    def for_torchrun(self) -> list[str]:
        """What follows the options of torchrun, which replaces $local_rank in arguments."""
        flag = {"module": ["-m"], "program": ["--no-python"]}.get(self.kind, [])
        return [*flag, *(word.replace("$", "$$") for word in self.words)]


def read_command(
    words: Sequence[str], *, module: bool = False, elsewhere: bool = False
) -> LaunchedCommand:
    """The command of `train ...`, SCRIPT.py ..., a program, or (with `module`) of a module.

    With `elsewhere`, it runs on other machines: its file need not be here.

    >>> read_command(["train", "m.onnx"])
    LaunchedCommand(kind='module', words=('onward', 'train', 'm.onnx'))
    """
    if not words or not words[0]:
        raise OptionError(
            "there is no command to launch\ngive a script, or: onward launch train model.onnx ..."
        )
    first = words[0]
    if module:
        return LaunchedCommand("module", tuple(words))
    if first == "train":
        return LaunchedCommand("module", ("onward", *words))
    if first.endswith(".py"):
        if not elsewhere and not Path(first).is_file():
            raise FileMissing(f"no script at {first}\ncheck its name and this folder")
        return LaunchedCommand("script", tuple(words))
    if not elsewhere and shutil.which(first) is None:
        raise OptionError(
            f"{first!r} is not a script, a program, or train\n"
            "give SCRIPT.py, train, -m MODULE, or a program"
        )
    return LaunchedCommand("program", tuple(words))
