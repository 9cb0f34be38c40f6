"""The kernels and contrib operators that the installed onnxruntime was built with."""

from __future__ import annotations

import functools

from onnxruntime.capi import onnxruntime_pybind11_state as native

Key = tuple[str, str]  # (domain, operator)


@functools.cache
def kernel_types(provider: str) -> dict[Key, list[str]]:
    """Every operator with a kernel in a provider, and the types that the newest kernel takes."""
    newest: dict[Key, int] = {}
    types: dict[Key, set[str]] = {}
    for kernel in native.get_all_opkernel_def():
        if kernel.provider != provider:
            continue
        key, since = (kernel.domain, kernel.op_name), kernel.version_range[0]
        if since > newest.get(key, 0):
            newest[key], types[key] = since, set()
        if since == newest[key]:
            constraints = sorted(kernel.type_constraints.items())
            types[key] |= set(constraints[0][1]) if constraints else set()
    return {key: sorted(found) for key, found in types.items()}


@functools.cache
def contrib_operators() -> dict[Key, int]:
    """The operators of onnxruntime's own domain (com.microsoft), with their versions."""
    schemas = native.get_all_operator_schema()
    return {
        (schema.domain, schema.name): int(schema.since_version)
        for schema in schemas
        if schema.domain == "com.microsoft" and not schema.deprecated
    }
