"""Reading ahead: while a client computes on one batch, a thread gets the next ones ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCHES_AHEAD = 2
"""How many results may wait: enough to even out slow reads, and no more memory than that."""


def ahead(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """``map(function, items)``, computed in order by a thread that is up to ``BATCHES_AHEAD`` items in advance.

    >>> list(ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    if len(items) == 1:  # nothing to overlap
        yield function(items[0])
        return
    with ThreadPoolExecutor(1, "fedvra-reads") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > BATCHES_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
