"""The Huffman code of HPACK (RFC 7541, appendix B), made from the lengths of its codes.

The code is canonical: codes of one length are consecutive numbers, in the order of their bytes.
"""

from __future__ import annotations

import functools

# The length of the code of each byte, then of the end of a string: A is 5 bits, Z is 30.
_LENGTHS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHF"
    "IBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABABABBBACCBBBABCBAABCCCCCKGJIX"
    "PRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRS"
    "VVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWV"
    "Z"
)
_END = 256


def _make_codes() -> dict[int, int]:
    """Code -> byte. A 1 in front of each code keeps its leading zeros."""
    codes, code, length = {}, 0, 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda each: (_LENGTHS[each], each)):
        more = ord(_LENGTHS[symbol]) - ord("A") + 5 - length
        code, length = code << more, length + more
        codes[code | 1 << length] = symbol
        code += 1
    return codes


_CODES = _make_codes()


@functools.lru_cache(1024)  # clients send the same few texts
def decode_huffman(data: bytes) -> bytes:
    """The text of a Huffman-coded string; ValueError if it is not one."""
    found = bytearray()
    code = 1
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            symbol = _CODES.get(code)
            if symbol is not None:
                if symbol == _END:
                    raise ValueError("a Huffman-coded string contains its end")
                found.append(symbol)
                code = 1
    # What is left is padding: fewer than 8 bits, all of them 1.
    if code >= 1 << 8 or code + 1 & code:
        raise ValueError("a Huffman-coded string ends within a code")
    return bytes(found)
