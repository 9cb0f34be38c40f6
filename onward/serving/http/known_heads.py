"""The heads of infer requests that one connection has had: clients mostly repeat the same bytes."""

from __future__ import annotations

from onward.serving.http.infer_head import Headers, InferHead

_MAX_HEADS, _MAX_HEAD_BYTES = 16, 2048  # of one connection; of one of them


class KnownHeads:
    """Finds heads by their bytes, so that they are parsed once."""

    __slots__ = ("_heads", "_new")

    def __init__(self) -> None:
        self._heads: dict[bytes, InferHead] = {}
        self._new: bytes | None = None  # may be one: its request is being parsed

    def find(self, data: bytes) -> tuple[InferHead, bytes] | None:
        """The head and the body of a whole infer request; None if the parser has to read it."""
        self._new = None
        end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES) + 4
        if end < 4:
            return None
        start = data[:end]
        head = self._heads.get(start)
        if head is None or head.length != len(data) - end:
            self._new = start if start[:6] == b"POST /" else None
            return None
        return head, data[end:]

    def learn(self, head: InferHead, headers: Headers) -> None:
        """Keep the head that was parsed, unless its next request needs the parser again."""
        start, self._new = self._new, None
        if start is None or not head.keep_alive or head.length is None or b"expect" in headers:
            return
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[start] = head

    def forget_new(self) -> None:
        """The first request of the data was read: the next head is not the one at its start."""
        self._new = None
