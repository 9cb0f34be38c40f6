"""ResultCache: bounded by bytes, least recently used first out, never shared by reference."""

from __future__ import annotations

import numpy as np

from onward.sessions.result_cache import ResultCache


def test_least_recently_used_results_are_removed() -> None:
    cache = ResultCache(16)
    keys = [cache.key(None, {"x": np.array([i])}) for i in range(3)]
    for key in keys[:2]:
        assert key is not None
        cache.put(key, [np.zeros(1)])
    assert keys[0] is not None and keys[1] is not None and keys[2] is not None
    cache.get(keys[0])  # now the second is the older one
    cache.put(keys[2], [np.zeros(1)])
    assert cache.get(keys[1]) is None
    assert cache.get(keys[0]) is not None
    assert cache.bytes == 16


def test_results_larger_than_the_cache_are_not_cached() -> None:
    cache = ResultCache(7)
    key = cache.key(None, {"x": np.array([1])})
    assert key is not None
    cache.put(key, [np.zeros(1)])
    assert (cache.get(key), cache.bytes) == (None, 0)


def test_the_same_key_twice_counts_once() -> None:
    cache = ResultCache(100)
    key = cache.key(["y"], {"x": np.array([1])})
    assert key is not None
    cache.put(key, [np.zeros(1)])
    cache.put(key, [np.zeros(2)])
    assert cache.bytes == 16


def test_keys_differ_by_values_types_shapes_and_outputs() -> None:
    cache = ResultCache(100)
    x = np.zeros((2, 3), np.float32)
    keys = {
        cache.key(None, {"x": x}),
        cache.key(["y"], {"x": x}),
        cache.key(None, {"x": x.reshape(3, 2)}),
        cache.key(None, {"x": x.view(np.int32)}),
        cache.key(None, {"x": x + 1}),
        cache.key(None, {"z": x}),
    }
    assert len(keys) == 6
    assert cache.key(None, {"x": x}) == cache.key(None, {"x": np.asfortranarray(x)})


def test_feeds_without_bytes_are_not_cached() -> None:
    assert ResultCache(100).key(None, {"x": ["a list"]}) is None
    assert ResultCache(100).key(None, {"x": np.array(["text"], object)}) is None


def test_results_are_computed_once_for_equal_feeds() -> None:
    cache, calls = ResultCache(100), []

    def compute() -> list[np.ndarray]:
        calls.append(1)
        return [np.full(2, len(calls))]

    for _ in range(2):
        [y] = cache.get_or_compute(None, {"x": np.array([1])}, compute)
        assert y.tolist() == [1, 1]
    cache.get_or_compute(None, {"x": np.array([2])}, compute)
    cache.get_or_compute(None, {"x": [1]}, compute)  # a list has no key
    assert (len(calls), cache.hits, cache.misses) == (3, 1, 2)
