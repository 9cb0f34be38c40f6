"""What is printed when a server is ready: its models, addresses, and commands that work now."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from onward.message_text import format_sizes
from onward.serving.example_request import SEQUENCE, example_arrays, example_command
from onward.serving.requests import TensorSpec
from onward.serving.server_info import ServedModelInfo, ServerInfo

_MOST_MODELS = 3  # with their inputs; of more, only the names
_MOST_TENSORS = 6
_MOST_WRITTEN = 12  # inputs of a model that a program is written for
KEY_HEADER = "Authorization: Bearer $ONWARD_KEY"


@dataclass(frozen=True)
class Section:
    """A heading and what is below it: text, or a program to copy."""

    title: str
    lines: tuple[str, ...]
    is_code: bool = False


def banner_text(info: ServerInfo) -> str:
    """The banner as plain text."""
    parts = []
    for section in banner_sections(info):
        indent = "" if section.is_code else "  "  # commands are copied from the first column
        parts.append("\n".join([section.title, *(f"{indent}{line}" for line in section.lines)]))
    return "\n\n".join(parts) + "\n"


def banner_sections(info: ServerInfo) -> list[Section]:
    """The models, where to look, and how to call the first model."""
    sections = [Section(*_models(info)), Section("addresses", tuple(_addresses(info)))]
    if info.models:
        first = info.models[0]
        sections.append(Section("with curl", (_curl(info, first),), is_code=True))
    if info.models and len(first.inputs) <= _MOST_WRITTEN:
        sections += [
            Section("with tritonclient", tuple(_triton_client(info, first)), is_code=True),
            Section("with onward", tuple(_onward_client(info, first)), is_code=True),
        ]
    return sections


def _models(info: ServerInfo) -> tuple[str, tuple[str, ...]]:
    count = len(info.models)
    if not count:
        return "no model is ready", ("load one: POST /v2/repository/models/NAME/load",)
    lines = []
    for model in info.models[:_MOST_MODELS]:
        batching = f"  (batching: {model.batching})" if model.batching else ""
        lines.append(f"{model.name}, version {model.version}{batching}")
        lines += [f"  {arrow} {text}" for arrow, text in _tensors(model)]
    if count > _MOST_MODELS:
        others = ", ".join(model.name for model in info.models[_MOST_MODELS : 4 * _MOST_MODELS])
        more = ", ..." if count > 4 * _MOST_MODELS else ""
        lines.append(f"and {count - _MOST_MODELS} more: {others}{more}")
    return f"serving {count} model{'' if count == 1 else 's'}", tuple(lines)


def _tensors(model: ServedModelInfo) -> list[tuple[str, str]]:
    found = [("in ", _describe(spec)) for spec in model.inputs[:_MOST_TENSORS]]
    if len(model.inputs) > _MOST_TENSORS:
        found.append(("in ", f"and {len(model.inputs) - _MOST_TENSORS} more"))
    found += [("out", _describe(spec)) for spec in model.outputs[:_MOST_TENSORS]]
    if len(model.outputs) > _MOST_TENSORS:
        found.append(("out", f"and {len(model.outputs) - _MOST_TENSORS} more"))
    return found


def _describe(spec: TensorSpec) -> str:
    names = spec.axes or ("",) * len(spec.shape)
    sizes = [size if size >= 0 else (name or None) for size, name in zip(spec.shape, names)]
    optional = "  (optional)" if spec.is_optional else ""
    return f"{spec.name}  {spec.datatype} [{format_sizes(sizes)}]{optional}"


def _addresses(info: ServerInfo) -> list[str]:
    found = [f"HTTP     {info.http_url}"]
    if info.grpc_address is not None:
        found.append(f"gRPC     {info.grpc_address}")
    found += [
        f"live     {info.http_url}/",
        f"docs     {info.http_url}/docs",
        f"metrics  {info.admin_url}/metrics",
    ]
    if info.needs_key:
        found.append("a key is needed: the examples read it from $ONWARD_KEY")
    return found


def infer_url(info: ServerInfo, model: ServedModelInfo) -> str:
    """Where a model's requests are sent."""
    return f"{info.http_url}/v2/models/{quote(model.name, safe='')}/infer"


def _curl(info: ServerInfo, model: ServedModelInfo) -> str:
    key = f'-H "{KEY_HEADER}"' if info.needs_key else ""  # the shell fills in the key
    return example_command(infer_url(info, model), model.inputs, key, model.keeps_sequences)


def _triton_client(info: ServerInfo, model: ServedModelInfo) -> list[str]:
    scheme, _, address = info.http_url.partition("://")
    arrays = example_arrays(model.inputs)
    lines = [
        f"import numpy as np, tritonclient.http as triton{_more_imports(info, model)}",
        f"client = triton.InferenceServerClient({address!r}"
        f"{', ssl=True' if scheme == 'https' else ''})",
        "inputs = []",
    ]
    for name, datatype, expression in arrays:
        lines.append(f"array = {expression}")
        lines.append(f"inputs.append(triton.InferInput({name!r}, array.shape, {datatype!r}))")
        lines.append("inputs[-1].set_data_from_numpy(array)")
    headers = ""
    if info.needs_key:
        headers = ', headers={"Authorization": "Bearer " + os.environ["ONWARD_KEY"]}'
    wanted = model.outputs[0].name if model.outputs else ""
    lines.append(
        f"print(client.infer({model.name!r}, inputs{_sequence(model)}{headers})"
        f".as_numpy({wanted!r}))"
    )
    return lines


def _onward_client(info: ServerInfo, model: ServedModelInfo) -> list[str]:
    arrays = example_arrays(model.inputs)
    feeds = ", ".join(f"{name!r}: {expression}" for name, _, expression in arrays)
    key = ', api_key=os.environ["ONWARD_KEY"]' if info.needs_key else ""
    return [
        f"import numpy as np, onward{_more_imports(info, model)}",
        f"print(onward.Client({info.http_url!r}{key})"
        f".infer({model.name!r}, {{{feeds}}}{_sequence(model)}))",
    ]


def _sequence(model: ServedModelInfo) -> str:
    """The arguments of both clients that make a request a sequence of its own."""
    if not model.keeps_sequences:
        return ""
    return "".join(f", {name}={value}" for name, value in SEQUENCE.items())


def _more_imports(info: ServerInfo, model: ServedModelInfo) -> str:
    has_bfloat16 = any(spec.datatype == "BF16" for spec in model.inputs)
    has_files = any(spec.is_binary for spec in model.inputs)
    names = {"ml_dtypes": has_bfloat16, "base64": has_files, "os": info.needs_key}
    return "".join(f", {name}" for name, is_needed in names.items() if is_needed)
