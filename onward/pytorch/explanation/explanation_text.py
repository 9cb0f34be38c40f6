"""An explanation as text for a terminal, under 100 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from onward.formatting import show_bytes, show_count, show_seconds
from onward.pytorch.explanation.explained_facts import (
    FiredRewrite,
    ProgramFacts,
    ProgramTensor,
    SubmoduleRow,
    TensorBytes,
)

MOST_SAVED = 20  # values that are listed
_MOST_OPERATORS = 15
_MOST_MODULES = 60
_WIDTH = 99
_LABEL = 12  # columns of a program's labels
SELF = "the module"  # the module that is explained, among paths
GRAPHS = {
    "captured": "captured",
    "joint": "with gradients",
    "forward": "forward",
    "backward": "backward",
}


def render_text(
    headline: str,
    submodules: Sequence[SubmoduleRow],
    programs: Sequence[ProgramFacts],
    tensors: Sequence[TensorBytes],
) -> str:
    """The report."""
    lines = [headline, "", "Submodules", *_submodules(submodules)]
    for number, program in enumerate(programs, 1):
        lines += ["", f"Program {number}: {program.path or 'the whole module'}"]
        lines += _program(program)
    lines += ["", "Memory", *_memory(tensors)]
    return "\n".join(lines)


def saved_by_module(tensors: Sequence[TensorBytes]) -> dict[str, int]:
    """The bytes of saved values by the path of the submodule, the most first."""
    found: Counter[str] = Counter()
    for each in tensors:
        if each.kind == "saved":
            found[each.module] += each.bytes
    return dict(found.most_common())


def show_tensor(tensor: ProgramTensor) -> str:
    """
    >>> show_tensor(ProgramTensor(name="x", dtype="float32", shape=("s0", 3), has_gradient=True))
    'x float32 (s0, 3), with gradient'
    """
    sizes = ", ".join(map(str, tensor.shape))
    return f"{tensor.name} {tensor.dtype} ({sizes}){', with gradient' * tensor.has_gradient}"


def show_rewrites(rewrites: Sequence[FiredRewrite]) -> str:
    """
    >>> show_rewrites([FiredRewrite(operator="onward::Attention", count=2, modules={"a": 2})])
    'onward::Attention 2 (a)'
    """
    return "; ".join(f"{each.operator} {each.count} ({show_modules(each)})" for each in rewrites)


def show_parameters(program: ProgramFacts) -> str:
    """The number of parameters and buffers of a program."""
    count, reached = program.parameters, program.parameters_with_gradients
    return f"{count} parameters, {reached} with gradients; {program.buffers} buffers"


def show_shape(shape: Sequence[int] | None) -> str:
    """
    >>> show_shape((2, 3)), show_shape(()), show_shape(None)
    ('2 x 3', '1', '?')
    """
    return "?" if shape is None else " x ".join(map(str, shape)) or "1"


def show_modules(rewrite: FiredRewrite) -> str:
    """The submodules of a rewrite; if there are many, equal ones of numbered layers are one.

    >>> found = {f"layers.{n}.norm": 1 for n in range(8)}
    >>> show_modules(FiredRewrite(operator="onward::Attention", count=8, modules=found))
    'layers.*.norm'
    """
    found = Counter(rewrite.modules)
    if len(found) > 3:
        found = Counter()
        for path, count in rewrite.modules.items():
            found[".".join("*" if part.isdigit() else part for part in path.split("."))] += count
    if len(found) == 1:
        return next(iter(found)) or SELF
    shown = [f"{path or SELF} {count}" for path, count in found.most_common(6)]
    return ", ".join(shown + [f"{len(found) - 6} more"] * (len(found) > 6))


def show_composites(program: ProgramFacts) -> str:
    """How many composites the engine runs as one kernel."""
    count = sum(each.count for each in program.composites)
    return (
        f"{program.kept_composites} of {count} composites are one kernel, the others their bodies"
    )


def _submodules(rows: Sequence[SubmoduleRow]) -> Iterator[str]:
    for row in rows[:_MOST_MODULES]:
        name = row.path.rpartition(".")[2] or row.kind
        title = f"{'  ' * row.depth}{name}{f' ({row.kind})' if row.path else ''}"
        cost = f"{row.nodes:>6} nodes {show_count(row.parameters):>8} parameters"
        yield f"  {_cut(title, 48):48} {row.status:11}{cost}"
        if row.reason:
            indent = "    " + "  " * row.depth
            yield from textwrap.wrap(
                row.reason, _WIDTH, initial_indent=indent, subsequent_indent=indent
            )
    if len(rows) > _MOST_MODULES:
        yield f"  and {len(rows) - _MOST_MODULES} more"


def _program(program: ProgramFacts) -> Iterator[str]:
    yield from _labelled("engine", program.engine)
    yield from _labelled("inputs", "; ".join(map(show_tensor, program.inputs)) or "none")
    yield from _labelled("sizes", ", ".join(program.guards) or "any for each symbol")
    yield from _labelled("results", "; ".join(map(show_tensor, program.results)) or "none")
    yield from _labelled("changes", ", ".join(program.changes) or "nothing")
    yield from _labelled("module", show_parameters(program))
    nodes = (f"{GRAPHS[name]} {count}" for name, count in program.nodes.items())
    yield from _labelled("nodes", ", ".join(nodes))
    yield from _labelled("composites", show_rewrites(program.composites) or "none")
    yield from _labelled("kernels", show_composites(program))
    yield from _labelled("fusions", show_rewrites(program.fusions) or "none")
    times = (f"{name} {show_seconds(seconds)}" for name, seconds in program.seconds.items())
    yield from _labelled("time", ", ".join(times))
    yield (
        f"  {'operator':40}"
        + "".join(f"{name:>15}" for name in [*GRAPHS.values()][:3])
        + (f"{'backward':>11}")
    )
    for row in program.operators[:_MOST_OPERATORS]:
        counts = f"{row.captured or '':>15}{row.joint or '':>15}{row.forward or '':>15}"
        yield f"  {_cut(row.operator, 40):40}{counts}{row.backward or '':>11}".rstrip()
    left = len(program.operators) - _MOST_OPERATORS
    if left > 0:
        yield f"  and {left} more operators"


def _memory(tensors: Sequence[TensorBytes]) -> Iterator[str]:
    for kind, title in (
        ("parameter", "parameters"),
        ("gradient", "gradients"),
        ("buffer", "buffers"),
        ("saved", "saved for the backward"),
    ):
        found = [each.bytes for each in tensors if each.kind == kind]
        yield f"  {title:24}{show_bytes(sum(found)):>12}  in {len(found)} tensors"
    saved = [each for each in tensors if each.kind == "saved"]
    if saved:
        yield "  the largest of what is saved, for the sizes of the example"
    for each in saved[:MOST_SAVED]:
        shape = f"{each.dtype} {show_shape(each.shape)}"
        note = f", {each.note}" * bool(each.note)
        size = "?" if each.shape is None else show_bytes(each.bytes)
        yield _cut(f"  {size:>12}  {_cut(shape, 26):26} {_cut(each.name, 28):28} "
                   f"{_cut(each.module or SELF, 28 - len(note))}{note}", _WIDTH)  # fmt: skip


def _labelled(label: str, text: str) -> list[str]:
    space = " " * (_LABEL + 2)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"  {label:{_LABEL}}", subsequent_indent=space
    )


def _cut(text: str, most: int) -> str:
    """
    >>> _cut("layers.0.attention", 10)
    '...tention'
    """
    return text if len(text) <= most else "..." + text[3 - most :]
