"""The documentation says what is true: examples run, links lead somewhere, lists are complete."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import onward
from onward.cli.main import VERBS, main
from onward.runner.config import TrainConfig

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FRONT = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*FRONT, *sorted(DOCS.rglob("*.md"))]

FIELDS = TrainConfig.model_fields  # the settings of `onward train`

# The rows of the mission, which docs/status.md answers one by one.
ROWS = [
    *(f"F{n}" for n in range(1, 7)),  # shared foundation
    *(f"I{n}" for n in range(1, 16)),  # inference
    *(f"T{n}" for n in range(1, 17)),  # training
    *(f"D{n}" for n in range(1, 12)),  # distributed
]


def named(pages: list[Path]) -> list[object]:
    """The pages as pytest parameters, each with a readable name."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def read(page: Path) -> str:
    return page.read_text("utf-8")


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """(line, source) of each python block; those right after `<!-- no-run -->` are left out."""
    for match in re.finditer(r"(<!-- no-run -->\n)?^```python\n(.*?)^```$", text, re.M | re.S):
        if match[1] is None:
            yield text[: match.start(2)].count("\n"), match[2]


def tables(text: str) -> Iterator[list[str]]:
    """The cells of each row of each markdown table, headings and rules left out."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""]):
        is_rule = re.fullmatch(r"[|\- :]+", line)
        if line.startswith("| ") and not is_rule and not re.fullmatch(r"\|[|\- :]+", following):
            yield [cell.strip() for cell in line.strip().strip("|").split(" |")]


def commands(text: str) -> Iterator[str]:
    """The verbs that console blocks call, continued lines joined; options alone are no verb."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        lines = block.replace("\\\n", " ").splitlines()
        yield from (line[2:] for line in lines if re.match(r"\$ onward [a-z]", line))


WITH_CODE = [page for page in PAGES if list(python_blocks(read(page)))]
WITH_COMMANDS = [page for page in PAGES if list(commands(read(page)))][1:]  # README: below


# pages with commands run their examples below, before the commands
@pytest.mark.integration
@pytest.mark.parametrize("page", named([page for page in WITH_CODE if page not in WITH_COMMANDS]))
def test_the_examples_of_a_page_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for line, source in python_blocks(read(page)):
        tree = ast.increment_lineno(ast.parse(source), line)
        exec(compile(tree, str(page), "exec", dont_inherit=True), names)


@pytest.mark.integration
@pytest.mark.parametrize("page", named(WITH_COMMANDS))
def test_the_commands_of_a_page_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder where the page's python examples ran; `# exit code 1` says what to expect."""
    test_the_examples_of_a_page_run_one_after_another(page, tmp_path, monkeypatch)
    run_commands(page, tmp_path, monkeypatch)


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the data that the first example of docs/train.md writes."""
    monkeypatch.chdir(tmp_path)
    exec(next(source for _, source in python_blocks(read(DOCS / "train.md"))), {})
    run_commands(ROOT / "README.md", tmp_path, monkeypatch)
    assert (tmp_path / "runs/model-1/report.html").is_file()


def run_commands(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a page, in this process."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("HOME", str(folder))  # whatever a command keeps, it keeps here
    for command in commands(read(page)):
        expected = re.search(r"# exit code (\d+)", command)
        words = shlex.split(command, comments=True)
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == int(expected[1] if expected else 0), command


def test_the_page_of_the_command_line_shows_every_verb() -> None:
    page = read(DOCS / "cli.md")
    shown = {command.split()[1] for command in commands(page)}
    elsewhere = set(re.findall(r"`onward ([\w-]+)`", page))  # on a page of its own
    assert set(VERBS) <= shown | elsewhere


def test_commands_are_found_only_in_console_blocks() -> None:
    text = "```console\n$ onward run a \\\n    b\nout\n$ make x\n```\n```\n$ onward no\n```\n"
    assert [command.split() for command in commands(text)] == [["onward", "run", "a", "b"]]


def test_the_readme_has_an_example() -> None:
    assert ROOT / "README.md" in WITH_CODE


def test_a_block_can_be_marked_as_not_to_run() -> None:
    text = "```python\na\n```\n<!-- no-run -->\n```python\nb\n```\n"
    assert list(python_blocks(text)) == [(1, "a\n")]


@pytest.mark.parametrize("page", named(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(read(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / path if path else page
        if not file.is_file() or (anchor and anchor not in anchors(read(file))):
            broken.append(target)
    assert not broken


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """The ids that headings get."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_menu_lists_every_page() -> None:
    def leaves(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict | list):
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(inner)

    menu = list(leaves(yaml.safe_load(read(ROOT / "mkdocs.yml"))["nav"]))
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_welcome_page_links_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+\.md)", read(DOCS / "index.md")))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("design/0")}
    assert pages - decisions - {"index.md"} == linked


@pytest.mark.parametrize("page", named(PAGES))
def test_a_page_is_plain_markdown(page: Path) -> None:
    assert "--8<--" not in without_code(read(page))  # which a code host shows as it is


@pytest.mark.integration
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "index.html").is_file()


def test_the_design_index_lists_every_decision_in_order() -> None:
    decisions = sorted(page.name for page in (DOCS / "design").glob("[0-9]*.md"))
    assert re.findall(r"\((\d{4}-.*?\.md)\)", read(DOCS / "design/index.md")) == decisions


def status() -> dict[str, str]:
    """What docs/status.md says of each row: works, partly or planned."""
    rows = [row for row in tables(read(DOCS / "status.md")) if re.fullmatch(r"[FITD]\d+", row[0])]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[2] for row in rows}


def test_the_status_table_answers_every_row_of_the_mission() -> None:
    assert list(status()) == ROWS
    assert set(status().values()) <= {"works", "partly", "planned"}


@pytest.mark.parametrize("page", named(PAGES))
def test_every_make_verb_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.M))
    assert set(re.findall(r"(?:`|\$ )make ([a-z]+)", read(page))) <= targets


def components() -> dict[str, list[str]]:
    """The labels of each diagram of the documents that the project began from."""
    diagrams: dict[str, list[str]] = {}
    for line in read(ROOT / "tests/diagrams.txt").splitlines():
        if line.startswith("## "):
            diagrams[line[3:]] = []
        elif line and not line.startswith("#"):
            diagrams[list(diagrams)[-1]].append(line)
    return diagrams


def test_the_map_has_every_component_of_every_diagram() -> None:
    sections = re.split(r"^## ", read(DOCS / "map.md"), flags=re.M)[1:]
    drawn = {section.splitlines()[0]: [row[0] for row in tables(section)] for section in sections}
    assert drawn == components()


def test_the_map_leads_to_files_that_exist_or_to_rows_that_are_not_done() -> None:
    states, lost = status(), []
    for component, where, how in tables(read(DOCS / "map.md")):
        folders = "onward|benchmarks|conformance|examples|scripts"
        paths = re.findall(rf"`((?:{folders})/[^`]*)`", where + how)
        lost += [f"{component}: {path}" for path in paths if not (ROOT / path).exists()]
        rows = [] if where.startswith("`") else where.split(", ")
        lost += [f"{component}: row {row}" for row in rows if states.get(row, "works") == "works"]
        if not rows and not paths:
            lost.append(f"{component}: nowhere")
    assert not lost


def requirements() -> dict[str, set[str]]:
    """The names that pyproject.toml requires, by extra; "" is the core."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    listed = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {re.split(r"[\[<>=~!; ]", entry)[0] for entry in entries}
        for extra, entries in listed.items()
    }


def test_every_dependency_has_its_reason() -> None:
    sections = re.split(r"^## ", read(DOCS / "dependencies.md"), flags=re.M)[1:]
    given = {}
    for section in sections:
        title = re.sub(r"Core|Extra|`| ", "", section.splitlines()[0])
        given[title] = {row[0].strip("`") for row in tables(section)}
    assert given == requirements()


def test_every_extra_is_on_the_page_of_the_installation() -> None:
    listed = [row[0].strip("`") for row in tables(read(DOCS / "install.md"))]
    assert listed == [extra for extra in requirements() if extra]


def test_every_direct_dependency_is_pinned_for_development() -> None:
    lines = read(ROOT / "constraints.txt").splitlines()
    pins = {line.split("==")[0] for line in lines if "==" in line}
    assert set().union(*requirements().values()) - {"onward"} <= pins


@pytest.mark.parametrize("options", [onward.SessionOptions, onward.RunOptions])
def test_every_setting_is_explained(options: type) -> None:
    names = {name for name in (*vars(options()), *dir(options)) if not name.startswith("_")}
    page = read(DOCS / "inference.md")
    internal = {"of", "followed_by", "for_one_run", "run_config_entries"}
    unexplained = {name for name in names - internal if not re.search(rf"`{name}\b", page)}
    assert not unexplained


def test_every_option_of_training_is_in_its_table() -> None:
    fields = [field.name for field in dataclasses.fields(onward.TrainingOptions)]
    listed = [row[0].strip("`") for row in tables(read(DOCS / "training.md"))]
    assert [name for name in listed if name in fields] == fields


def test_every_setting_of_onward_train_is_in_its_table() -> None:
    """With the words of the help; an empty cell, or off, is a default that means none."""
    listed = [row for row in tables(read(DOCS / "train.md")) if len(row) == 3]
    rows = {row[0].strip("`"): row[1:] for row in listed if row[0].strip("`") in FIELDS}
    assert set(rows) == set(FIELDS)
    for name, (default, meaning) in rows.items():
        field = FIELDS[name]
        shown = ",".join(field.default) if isinstance(field.default, list) else field.default
        none = field.default is None or field.default == []
        expected = "" if none else "off" if field.default is False else f"`{shown}`"
        assert (default, meaning) == (expected, field.description), name
