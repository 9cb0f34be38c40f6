"""Variables of loaders for the inputs of a model, in JavaScript, Kotlin, Swift and C++."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORDS = """
abstract alignas alignof and and_eq any arguments as asm associatedtype async auto await bitand
bitor bool break by case catch char class compl concept const const_cast constexpr continue
debugger decltype default defer deinit delete do double dynamic_cast else enum eval explicit
export extends extension extern false fallthrough fileprivate final finally float for friend
func function fun goto guard if implements import in init inline inout instanceof int interface
internal is let long main mutable namespace native new nil noexcept not not_eq null nullptr
object open operator or or_eq override package private protected protocol public register
reinterpret_cast repeat requires rethrows return self short signed sizeof static static_assert
static_cast std struct subscript super switch template this throw throws true try typealias
typedef typeid typename typeof undefined union unsigned using val var virtual void volatile when
where while with xor xor_eq yield
"""  # of the languages
_USED = """
Bundle Data Float Model Ort bytes context environment feeds fileURLToPath found input_names
inputs it memory ort output output_names outputs path results run session url
"""  # by the loaders
_ENDINGS = ("", "_shape", "Shape", "Bytes", "Value")  # of variables that loaders make of one


def make_variables(names: Sequence[str]) -> list[str]:
    """A variable for each input: its name, where every language takes it.

    >>> make_variables(["a.b", "a", "a_shape", "in"])
    ['a_b', 'a', 'a_shape_', 'in_']
    """
    found: list[str] = []
    taken = {*_WORDS.split(), *_USED.split()}
    for name in names:
        word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "x"
        word = f"x_{word}" if word[0].isdigit() else word
        while not taken.isdisjoint(word + ending for ending in _ENDINGS):
            word += "_"
        found.append(word)
        taken.update(word + ending for ending in _ENDINGS)
    return found
