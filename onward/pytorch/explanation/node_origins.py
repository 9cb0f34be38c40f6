"""NodeOrigins: from which submodule the nodes and values of a program come."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onward.graph.scopes import reads, walk
from onward.pytorch.captured_program import CapturedProgram

_SCOPES = "pkg.torch.onnx.name_scopes"
_TRACED = "module"  # the name of the captured module in the traced one


class NodeOrigins:
    """The submodules of nodes, by the exporter's metadata.

    Passes keep the metadata, gradient rules do not: a gradient node belongs to the submodule that
    most of the parameters and forward values which it reads belong to.
    """

    def __init__(self, program: CapturedProgram, path: str) -> None:
        self._prefix = path
        self._of_value: dict[str, str] = {}
        self._readers: dict[str, list[str]] = {}  # forward value -> submodules that read it
        self._parameters: set[str] = set()
        for name, tensor in program.capture.tensors.items():
            self._of_value[name] = self._full(tensor.rpartition(".")[0])
        self._parameters.update(self._of_value)
        for name, gradient in program.joint.gradients.items():
            if name in self._of_value:
                self._of_value[gradient] = self._of_value[name]
        for model in (program.capture.model, program.joint.model, *program.graphs):
            self._read(model)

    def of_node(self, node: ir.Node) -> str:
        """The path of a node's submodule; that of the captured module if it is not known."""
        return next(self._known(str(value.name) for value in node.outputs), self._prefix)

    def of_value(self, name: str) -> str:
        """The path of the submodule that a value belongs to."""
        return next(self._known([name]), self._prefix)

    def _known(self, names: Iterable[str]) -> Iterator[str]:
        """The paths of values; passes name a value after the one that it replaces: old/new."""
        for name in names:
            while name and name not in self._of_value:
                name = name.rpartition("/")[0]
            if name:
                yield self._of_value[name]

    def _read(self, model: ir.Model) -> None:
        for node in model.graph:
            function = model.functions.get(node.op_identifier())
            inside = [] if function is None else list(walk(function.graph))
            scopes = (self._scope(each) for each in (node, *inside))
            found = next((scope for scope in scopes if scope is not None), None)
            if found is None:
                found = next(self._known(str(value.name) for value in node.outputs), None)
            if found is not None:
                for value in reads(node):
                    self._readers.setdefault(str(value.name), []).append(found)
            else:
                found = self._vote(node)
            if found is not None:
                for value in (value for each in (node, *inside) for value in each.outputs):
                    self._of_value.setdefault(str(value.name), found)

    def _vote(self, node: ir.Node) -> str | None:
        """The submodule of most of what a node reads.

        A rule reads what its forward node read, or made: the readers of a value count, too.
        """
        votes: Counter[str] = Counter()
        names = [str(value.name) for value in reads(node)]
        for name in names:
            if name in self._parameters:
                votes[self._of_value[name]] += 2
            else:
                votes.update(set(self._readers.get(name, ())))
                votes.update(self._known([name] if name in self._readers else ()))
        if not votes:
            votes.update(self._known(names))
        return votes.most_common(1)[0][0] if votes else None

    def _scope(self, node: ir.Node) -> str | None:
        """The innermost submodule in a node's metadata; the last entry is the operation."""
        text = node.metadata_props.get(_SCOPES)
        if text is None:
            return None
        scopes = [scope.partition("@")[0] for scope in ast.literal_eval(text)[:-1]]
        traced = [scope for scope in scopes if scope.split(".")[0] == _TRACED]
        return self._full(traced[-1].removeprefix(_TRACED).removeprefix(".")) if traced else None

    def _full(self, path: str) -> str:
        return ".".join(part for part in (self._prefix, path) if part)
