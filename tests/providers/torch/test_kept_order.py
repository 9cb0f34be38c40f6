"""Compiled code runs in the order of the graph, as far as its kernels allow."""

from __future__ import annotations

from dataclasses import dataclass, field

from onward.providers.torch.kept_order import KeptOrder, sort_kernels


@dataclass(frozen=True)
class Dependency:
    name: str


@dataclass
class Kernel:
    """A node of Inductor's scheduler, as much of it as is read."""

    name: str
    max_order: int
    reads: str = ""
    unmet_dependencies: list[Dependency] = field(init=False)

    def __post_init__(self) -> None:
        self.unmet_dependencies = [Dependency(name) for name in self.reads]

    def get_buffer_names(self) -> list[str]:
        return [self.name]


def order(*kernels: Kernel) -> str:
    return "".join(kernel.name for kernel in sort_kernels(kernels))


def test_a_fused_kernel_runs_where_its_last_node_was() -> None:
    """f is fused of the first and the last node, and needs c: not b, which ran before c."""
    assert order(Kernel("a", 0), Kernel("c", 2, "a"), Kernel("f", 3, "c"), Kernel("b", 1, "a")) == (
        "abcf"
    )


def test_a_kernel_waits_for_what_it_reads() -> None:
    late = Kernel("f", 9)  # fused of a first node and one at the end
    assert order(Kernel("a", 0, "f"), Kernel("b", 1), Kernel("c", 2, "a"), late) == "bfac"


def test_values_from_elsewhere_and_a_kernel_that_changes_its_own_are_not_awaited() -> None:
    assert order(Kernel("a", 0, "x"), Kernel("b", 1, "ab")) == "ab"
    assert sort_kernels([]) == []


def test_the_cache_of_compiled_code_knows_the_order() -> None:
    assert KeptOrder().uuid() == KeptOrder().uuid() and KeptOrder()([Kernel("a", 0)])
