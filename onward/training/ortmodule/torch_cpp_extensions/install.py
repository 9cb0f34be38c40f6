"""python -m onnxruntime.training.ortmodule.torch_cpp_extensions.install: nothing to build."""

from __future__ import annotations


def build_torch_cpp_extensions() -> None:
    """Say that there is nothing to build."""
    print("Onward has no C++ extensions: nothing needs to be built.")


if __name__ == "__main__":
    build_torch_cpp_extensions()
