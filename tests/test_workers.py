"""Blocks that several threads work on at once: the order of results, errors in their turn, bounded waiting."""

from __future__ import annotations

import threading
import time

import pytest

from aniso.workers import spread


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 20])
def test_results_come_in_order(threads: int, count: int) -> None:
    def work(item: int, share: int) -> tuple[int, int]:
        time.sleep(0.002 * (item % 3))  # later ones are often done first
        return item, share

    found = list(spread(work, range(count), threads))
    assert [item for item, _ in found] == list(range(count))
    assert all(share == threads // min(threads, count) if count > 1 else share == threads for _, share in found)


def test_items_are_worked_on_at_once() -> None:
    both = threading.Barrier(2)  # passed only if two are there

    def work(item: int, share: int) -> int:
        return both.wait(timeout=60)

    assert sorted(spread(work, [0, 1], 2)) == [0, 1]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_in_its_turn_and_stops_what_follows(threads: int) -> None:
    begun: list[int] = []

    def work(item: int, share: int) -> int:
        begun.append(item)
        if item >= 4:
            raise ValueError(f"item {item}")
        return item

    found: list[int] = []
    with pytest.raises(ValueError, match="item 4"):
        found.extend(spread(work, range(100), threads))
    assert max(begun) <= 4 + 2 * threads


def test_few_results_wait() -> None:
    begun: list[int] = []
    results = spread(lambda item, share: begun.append(item), range(100), 3)
    for taken in range(10):
        next(results)
        time.sleep(0.005)
        assert len(begun) <= taken + 1 + 2 * 3
    results.close()
    assert len(begun) < 20
