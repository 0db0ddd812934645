"""Blocks of points worked on by several threads at once, with results in the order of the blocks.

The core spreads one call over threads by itself. What NumPy does before and after such calls runs on one core, unless
several blocks are on their way together: so each block gets a thread, and the core's calls for it stay on that thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["spread"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item, int], Result], items: Sequence[Item], threads: int) -> Generator[Result, None, None]:
    """work(item, its share of the threads) for every item, in their order, as many at once as there are threads.

    The caller is one of the threads. At most two results for each thread wait to be taken, so that memory is bounded.
    What work raises comes in its turn, and little that had not begun is begun after it.

    >>> list(spread(lambda item, threads: item**2, [1, 2, 3], 2))
    [1, 4, 9]
    """
    workers = min(threads, len(items))
    if workers <= 1:
        for item in items:
            yield work(item, threads)
        return
    left, share = deque(items), threads // workers
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers - 1) as others:

        def hand_out(most: int) -> None:
            while left and len(waiting) < most:
                waiting.append(others.submit(work, left.popleft(), share))

        try:
            while left or waiting:
                hand_out(workers - 1)
                if left and not waiting[0].done() and len(waiting) < 2 * workers:
                    item, own = left.popleft(), Future[Result]()
                    waiting.append(own)
                    hand_out(2 * workers - 1)  # so that nobody waits for the caller
                    try:
                        own.set_result(work(item, share))
                    except Exception as error:
                        own.set_exception(error)
                else:
                    hand_out(2 * workers - 1)
                    yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
