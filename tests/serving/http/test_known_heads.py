"""known_heads: which bytes are the head of an infer request that was parsed before."""

from __future__ import annotations

from dataclasses import replace

from onward.serving.http.infer_head import InferHead
from onward.serving.http.known_heads import KnownHeads

HEAD = InferHead("m", "", keep_alive=True, length=4)
START = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 4\r\n\r\n"


def learned(head: InferHead = HEAD, **headers: bytes) -> KnownHeads:
    heads = KnownHeads()
    assert heads.find(START + b"body") is None
    heads.learn(head, {name.encode(): value for name, value in headers.items()})
    return heads


def test_a_head_that_was_learned_is_found_with_its_body() -> None:
    assert learned().find(START + b"next") == (HEAD, b"next")


def test_only_whole_requests_are_found() -> None:
    heads = learned()
    assert heads.find(START + b"nex") is None
    assert heads.find(START + b"next and another") is None
    assert heads.find(START[:-2]) is None


def test_heads_whose_next_request_needs_the_parser_are_not_learned() -> None:
    for heads in (
        learned(replace(HEAD, keep_alive=False)),
        learned(replace(HEAD, length=None)),
        learned(expect=b"100-continue"),
    ):
        assert heads.find(START + b"next") is None


def test_the_second_head_of_the_data_is_not_taken_for_the_first() -> None:
    heads = KnownHeads()
    assert heads.find(START + b"body" + START.replace(b"/m/", b"/n/") + b"body") is None
    heads.forget_new()
    heads.learn(replace(HEAD, model="n"), {})
    assert heads.find(START + b"body") is None


def test_few_heads_are_kept() -> None:
    heads = KnownHeads()
    starts = [START.replace(b"/m/", b"/%d/" % number) for number in range(17)]
    for start in starts:
        heads.find(start + b"body")
        heads.learn(HEAD, {})
    assert heads.find(starts[0] + b"body") is None
    assert heads.find(starts[-1] + b"body") == (HEAD, b"body")
