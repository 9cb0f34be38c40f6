"""Convert a model to onnxruntime's own format, and list the operators and types that it needs.

As onnxruntime.tools.convert_onnx_models_to_ort does: all optimisations but the layouts of one
machine's vector width.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path

from onward.errors import UnsupportedModel
from onward.lazy import LazyModule
from onward.message_text import first_line

onnxruntime = LazyModule("onnxruntime")
tools = LazyModule("onnxruntime.tools.ort_format_model")

CONFIG = "required_operators_and_types.config"
_MACHINE_LAYOUT = "NchwcTransformer"


def convert_to_ort(source: Path, made: Path, *, is_arm: bool) -> None:
    """Write a model in onnxruntime's format."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(made)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.qdqisint8allowed", "1" if is_arm else "0")
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        onnxruntime.InferenceSession(
            str(source),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[_MACHINE_LAYOUT],
        )
    except Exception as error:  # onnxruntime raises kinds of its own
        line = first_line(error)[:300]
        raise UnsupportedModel(
            f"onnxruntime cannot run this model: {line}\nreplace what it names"
        ) from error


def write_operator_config(model: Path, path: Path) -> str:
    """Write the list of operators and types for a reduced build; return it.

    The model is in onnxruntime's format. The comment that names it has no folder: the same model,
    the same file.
    """
    with warnings.catch_warnings():  # it leaves a file open
        warnings.simplefilter("ignore", ResourceWarning)
        with contextlib.redirect_stdout(io.StringIO()):  # its import prints
            create_config = tools.create_config_from_models
            # the import has set its level to DEBUG
            logging.getLogger("ort_format_model.utils").setLevel(logging.ERROR)
            create_config([model], path, True)
    lines = path.read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("# -")]
    kept[0] = f"# Operators and types of {model.name}"
    text = "\n".join(kept) + "\n"
    path.write_text(text, "utf-8")
    return text


def operators_of(config: str) -> list[str]:
    """The operators of such a list: "ai.onnx::Conv", sorted.

    >>> operators_of("# comment\\nai.onnx;11;Conv,Gemm{\\"inputs\\": {\\"0\\": [\\"float\\"]}}\\n")
    ['ai.onnx::Conv', 'ai.onnx::Gemm']
    """
    found = set()
    for line in config.splitlines():
        if line and not line.startswith("#"):
            domain, _, names = line.split(";", 2)
            found |= {f"{domain}::{name}" for name in _names(names)}
    return sorted(found)


def _names(text: str) -> list[str]:
    """Names that are separated by commas; what is in braces belongs to the name before it."""
    depth, plain = 0, []
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        plain.append(letter if depth == 0 and letter != "}" else "")
    return [name for name in "".join(plain).split(",") if name]
