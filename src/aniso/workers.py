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

    At most one result more than there are threads waits to be taken, so that memory is bounded. What work raises comes
    in its turn, and nothing that had not begun is begun after it.

    >>> list(spread(lambda item, threads: item**2, [1, 2, 3], 2))
    [1, 4, 9]
    """
    workers = min(threads, len(items))
    if workers <= 1:
        for item in items:
            yield work(item, threads)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item, threads // workers))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
