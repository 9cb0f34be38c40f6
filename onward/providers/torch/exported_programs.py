"""Read `.pt2` files (torch.export) as ONNX models, by torch's own ONNX exporter."""

from __future__ import annotations

import importlib.util
import os
import warnings

import onnx_ir as ir
import torch

from onward.errors import InvalidModel, ProviderMissing


def read_program(path: str | os.PathLike[str]) -> ir.Model:
    """Read an exported program and translate it to ONNX, its parameters as initializers."""
    if importlib.util.find_spec("onnxscript") is None:  # torch's exporter imports it
        raise ProviderMissing(
            f"{path}: onnxscript, which translates torch programs to ONNX, is not installed\n"
            "install it with: pip install onward[torch]"
        )
    with warnings.catch_warnings():  # torch warns about its own reading and writing
        warnings.simplefilter("ignore")
        try:
            program = torch.export.load(os.fspath(path))
        except Exception as error:  # torch raises many kinds on broken archives
            raise InvalidModel(f"{path} is not a torch.export program: {error}") from error
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert exported is not None
    model: ir.Model = exported.model
    return model
