"""An explanation as one HTML file that needs no network and no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from onward.formatting import show_bytes, show_count, show_seconds
from onward.measure.page_style import page_style
from onward.pytorch.explanation.explained_facts import (
    CAPTURED,
    IN_PYTORCH,
    FiredRewrite,
    ProgramFacts,
    SubmoduleRow,
    TensorBytes,
)
from onward.pytorch.explanation.explanation_text import (
    GRAPHS,
    MOST_SAVED,
    SELF,
    saved_by_module,
    show_composites,
    show_modules,
    show_parameters,
    show_shape,
    show_tensor,
)
from onward.pytorch.explanation.treemap import Rectangle, treemap

_COLORS = 10  # of the style sheet
_MAP = Rectangle(0, 0, 1120, 340)
_TONES = {CAPTURED: "finished", IN_PYTORCH: "interrupted"}  # colours of the style sheet's pills


def render_page(
    headline: str,
    submodules: Sequence[SubmoduleRow],
    programs: Sequence[ProgramFacts],
    tensors: Sequence[TensorBytes],
) -> str:
    """The text of the page."""
    parts = {
        "__HEADLINE__": escape(headline),
        "__TITLE__": escape(submodules[0].kind),
        "__TILES__": _tiles(programs, tensors),
        "__TREE__": "".join(_tree(submodules)),
        "__MAP__": _memory_map(saved_by_module(tensors)),
        "__SAVED__": _saved_table([each for each in tensors if each.kind == "saved"]),
        "__PROGRAMS__": "".join(_program(n, each) for n, each in enumerate(programs, 1)),
    }
    text = files("onward.pytorch.explanation").joinpath("explanation_page.html").read_text("utf-8")
    text = text.replace("__STYLE__", page_style())
    pieces = []  # filled from left to right: a name in the data is never taken for a place
    for place, part in parts.items():
        before, _, text = text.partition(place)
        pieces += [before, part]
    return "".join([*pieces, text])


def _tiles(programs: Sequence[ProgramFacts], tensors: Sequence[TensorBytes]) -> str:
    sizes: Counter[str] = Counter()
    for each in tensors:
        sizes[each.kind] += each.bytes
    seconds = sum(sum(program.seconds.values()) for program in programs)
    shown = {
        "parameters": show_bytes(sizes["parameter"]),
        "gradients": show_bytes(sizes["gradient"]),
        "buffers": show_bytes(sizes["buffer"]),
        "saved for the backward": show_bytes(sizes["saved"]),
        f"program{'s' * (len(programs) != 1)}": str(len(programs)),
        "to capture and compile": show_seconds(seconds),
    }
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value in shown.items()
    )


def _tree(rows: Sequence[SubmoduleRow]) -> Iterable[str]:
    for row in rows:
        tone = _TONES.get(row.status, "")
        name = row.path.rpartition(".")[2] or row.kind
        kind = f' <span class="soft">{escape(row.kind)}</span>' if row.path else ""
        reason = f'<div class="why">{escape(row.reason)}</div>' if row.reason else ""
        yield (
            f'<tr class="{tone}"><td style="padding-left: {10 + 22 * row.depth}px">'
            f"<b>{escape(name)}</b>{kind}{reason}</td>"
            f'<td><span class="pill {tone}">{escape(row.status)}</span></td>'
            f'<td class="n">{row.nodes or ""}</td>'
            f'<td class="n">{show_count(row.parameters) if row.parameters else ""}</td></tr>'
        )


def _memory_map(sizes: dict[str, int]) -> str:
    """Saved bytes by submodule: one colour for each child of the module."""
    shown = {path: size for path, size in sizes.items() if size}
    if not shown:
        return "<p>Nothing is saved: no gradient is needed, or PyTorch runs the module.</p>"
    total = sum(shown.values())
    tops = list(dict.fromkeys(_top(path) for path in shown))
    paths = sorted(shown, key=lambda path: tops.index(_top(path)))
    drawn = []
    for path, box in zip(paths, treemap([shown[path] for path in paths], _MAP)):
        label, size = path or SELF, show_bytes(shown[path])
        color = tops.index(_top(path)) % _COLORS
        title = f"{label}: {size}, {100 * shown[path] / total:.0f} % of what is saved"
        drawn.append(
            f'<g><title>{escape(title)}</title><rect class="cell" '
            f'style="fill: var(--c{color})" x="{box.x:.1f}" y="{box.y:.1f}" '
            f'width="{box.width:.1f}" height="{box.height:.1f}"/>{_labels(label, size, box)}</g>'
        )
    view = f"0 0 {_MAP.width:.0f} {_MAP.height:.0f}"
    label = "Memory saved for the backward, by submodule"
    return f'<svg viewBox="{view}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _labels(label: str, size: str, box: Rectangle) -> str:
    """The path and its bytes, where they fit into the box."""
    fits = int((box.width - 12) / 7.2)  # characters of 12 pixels
    if fits < 4 or box.height < 20:
        return ""
    text = label if len(label) <= fits else "…" + label[1 - fits :]
    found = f'<text x="{box.x + 7:.1f}" y="{box.y + 17:.1f}">{escape(text)}</text>'
    if box.height >= 38 and len(size) <= fits:
        found += f'<text x="{box.x + 7:.1f}" y="{box.y + 33:.1f}">{escape(size)}</text>'
    return found


def _top(path: str) -> str:
    return path.split(".")[0]


def _saved_table(saved: Sequence[TensorBytes]) -> str:
    rows = (
        f"<tr><td>{escape(each.name)}</td><td>{escape(each.module or SELF)}</td>"
        f'<td>{escape(each.dtype)} {show_shape(each.shape)}</td><td class="soft">{each.note}</td>'
        f'<td class="n">{"?" if each.shape is None else show_bytes(each.bytes)}</td></tr>'
        for each in saved[:MOST_SAVED]
    )
    return "".join(rows)


def _program(number: int, program: ProgramFacts) -> str:
    times = (f"{name} {show_seconds(each)}" for name, each in program.seconds.items())
    facts = {
        "Engine": program.engine,
        "Inputs": "; ".join(map(show_tensor, program.inputs)) or "none",
        "Sizes": ", ".join(program.guards) or "any for each symbol",
        "Results": "; ".join(map(show_tensor, program.results)) or "none",
        "Changes": ", ".join(program.changes) or "nothing",
        "Module": show_parameters(program),
        "Nodes": ", ".join(f"{GRAPHS[name]} {count}" for name, count in program.nodes.items()),
        "Kernels": show_composites(program),
        "Time": ", ".join(times),
    }
    listed = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in facts.items())
    operators = "".join(
        f'<tr><td>{escape(row.operator)}</td><td class="n">{row.captured or ""}</td>'
        f'<td class="n">{row.joint or ""}</td><td class="n">{row.forward or ""}</td>'
        f'<td class="n">{row.backward or ""}</td></tr>'
        for row in program.operators
    )
    heads = "".join(f'<th class="n">{name.capitalize()}</th>' for name in GRAPHS.values())
    return (
        f'<section class="card program"><h2>Program {number}: '
        f"{escape(program.path or 'the whole module')}</h2><dl>{listed}</dl>"
        f'<div class="two"><div><h3>Composites</h3>{_rewrites(program.composites)}</div>'
        f"<div><h3>Fusions</h3>{_rewrites(program.fusions)}</div></div>"
        f"<details><summary>Operators: {len(program.operators)}</summary>"
        f'<div class="scroll"><table><thead><tr><th>Operator</th>{heads}</tr></thead>'
        f"<tbody>{operators}</tbody></table></div></details></section>"
    )


def _rewrites(rewrites: Sequence[FiredRewrite]) -> str:
    if not rewrites:
        return '<p class="soft">None.</p>'
    rows = "".join(
        f'<tr><td>{escape(each.operator)}</td><td class="n">{each.count}</td>'
        f'<td class="soft">{escape(show_modules(each))}</td></tr>'
        for each in rewrites
    )
    return f"<table><tbody>{rows}</tbody></table>"
