"""HPACK against the examples of RFC 7541 and against broken blocks."""

from __future__ import annotations

import random

import pytest

from onward.serving.grpc.http2_headers import STATIC_TABLE, HeaderDecoder, encode_headers
from onward.serving.grpc.http2_huffman import decode_huffman


def test_the_static_table() -> None:
    assert len(STATIC_TABLE) == 61
    assert STATIC_TABLE[7] == (b":status", b"200")
    assert STATIC_TABLE[15] == (b"accept-encoding", b"gzip, deflate")
    assert STATIC_TABLE[60] == (b"www-authenticate", b"")


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
        ("a8eb10649cbf", b"no-cache"),
        ("25a849e95ba97d7f", b"custom-key"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        ("", b""),
    ],
)
def test_huffman_codes_of_the_rfc(coded: str, text: bytes) -> None:
    assert decode_huffman(bytes.fromhex(coded)) == text


@pytest.mark.parametrize("coded", ["00", "ffffffff", "f1ffff", "fffffffc"])
def test_huffman_codes_that_end_wrongly(coded: str) -> None:
    with pytest.raises(ValueError, match="Huffman"):
        decode_huffman(bytes.fromhex(coded))


def test_requests_of_the_rfc_with_huffman_codes() -> None:
    decoder = HeaderDecoder(16_384)
    first = [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
    ]
    assert decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == first
    second = [*first, (b"cache-control", b"no-cache")]
    assert decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf")) == second
    third = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    assert decoder.decode(third)[-1] == (b"custom-key", b"custom-value")


def test_a_cached_block_is_forgotten_when_the_table_changes() -> None:
    decoder = HeaderDecoder(16_384)
    add = b"\x40\x01a"
    decoder.decode(add + b"\x011")
    assert decoder.decode(b"\xbe") == [(b"a", b"1")]
    assert decoder.decode(b"\xbe") == [(b"a", b"1")]
    decoder.decode(add + b"\x012")
    assert decoder.decode(b"\xbe") == [(b"a", b"2")]
    assert decoder.decode(b"\xbf") == [(b"a", b"1")]


def test_the_table_is_bounded() -> None:
    decoder = HeaderDecoder(1 << 20)
    for i in range(200):
        decoder.decode(b"\x40\x04%04d\x64" % i + b"v" * 100)
    assert decoder.decode(b"\xbe")[0][0] == b"0199"
    with pytest.raises(ValueError, match="not there"):
        decoder.decode(b"\xff\x00")  # entry 127: 4,096 bytes hold 30
    decoder.decode(b"\x20")  # resized to nothing
    with pytest.raises(ValueError, match="not there"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"\x80", "not there"),
        (b"\xbe", "not there"),
        (b"\x00\x05ab", "cut off"),
        (b"\x00", "cut off"),
        (b"\x7f", "cut off"),
        (b"\xff\xff\xff\xff\xff\xff", "too large"),
        (b"\x3f\xe2\x1f", "resizes"),
        (b"\x82\x20", "resizes"),
    ],
)
def test_broken_blocks(block: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        HeaderDecoder(16_384).decode(block)


def test_headers_that_expand_are_bounded() -> None:
    decoder = HeaderDecoder(1000)
    decoder.decode(b"\x40\x01a\x7f\x11" + b"v" * 144)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        decoder.decode(b"\xbe" * 10)


def test_encoded_headers_are_decoded() -> None:
    headers = [(b"grpc-status", b"0"), (b"long", b"x" * 5000), (b"edge", b"y" * 127), (b"e", b"")]
    assert HeaderDecoder(16_384).decode(encode_headers(headers)) == headers


def test_random_blocks_raise_nothing_else() -> None:
    random_bytes = random.Random(0)
    for _ in range(2000):
        decoder = HeaderDecoder(16_384)
        try:
            decoder.decode(random_bytes.randbytes(random_bytes.randint(1, 60)))
        except ValueError:
            continue
