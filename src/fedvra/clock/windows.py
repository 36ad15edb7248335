"""When clients are reachable, in simulated seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedvra.core.errors import require
from fedvra.core.objects import Value
from fedvra.core.streams import Purpose, stream

Spans = list[tuple[float, float]]
PHASES = 1 << 32
"""A round number that no run has: phases are drawn apart from what is drawn in rounds."""


@dataclass(frozen=True)
class Windows(Value):
    """Clients work and talk only while they are reachable; what is not finished by then continues in the next window.

    Args:
        period: seconds after which the windows repeat, such as 86400 for a day.
        duty: the share of each period in which a client is reachable, in one stretch that begins at a time of its own,
            drawn from the run's seed.
        spans: instead, per client a list of (start, stop) within the period; gone through again where there are more clients.

    >>> Windows(period=10, spans=[[(2, 4), (7, 8)]]).finish(start=0, busy=2.5, client=0, seed=0)
    7.5
    """

    period: float
    duty: float | None = None
    spans: Any = None

    def __post_init__(self) -> None:
        require(np.isfinite(self.period) and self.period > 0, f"available: period must be > 0, got {self.period}.")
        require(
            (self.duty is None) != (self.spans is None),
            "available: give either duty or the spans of clients (windows).",
        )
        if self.duty is not None:
            require(0 < self.duty <= 1, f"available: duty must be in (0, 1], got {self.duty}.")
            return
        spans = tuple(tuple((float(a), float(b)) for a, b in sorted(each)) for each in self.spans)
        require(bool(spans) and all(spans), "available: every client needs at least one span (start, stop).")
        for each in spans:
            edges = [edge for span in each for edge in span]
            apart = all(a < b for a, b in each) and edges == sorted(edges)
            require(
                apart and edges[0] >= 0 and edges[-1] <= self.period,
                f"available: spans must lie apart within 0..{self.period:g}, got {[list(span) for span in each]}.",
            )
        object.__setattr__(self, "spans", spans)

    def finish(self, start: float, busy: float, client: int, seed: int) -> float:
        """When ``busy`` seconds of being reachable have gone by since ``start``."""
        spans = self._of(client, seed)
        each = sum(stop - begin for begin, stop in spans)
        whole = max(0, int(busy // each) - 1)  # so many full periods, wherever they begin
        now, left = start + whole * self.period, busy - whole * each
        while True:
            base = np.floor(now / self.period) * self.period
            for begin, stop in spans:
                since = max(now, base + begin)
                room = base + stop - since
                if room > 0 and room >= left:
                    return float(since + left)
                left -= max(0.0, room)
            now = base + self.period

    def _of(self, client: int, seed: int) -> Spans:
        if self.spans is not None:
            return list(self.spans[client % len(self.spans)])
        assert self.duty is not None
        begin = float(stream(seed, Purpose.CLOCK, PHASES, client).random()) * self.period
        stop = begin + self.duty * self.period
        if stop <= self.period:
            return [(begin, stop)]
        return [(0.0, stop - self.period), (begin, self.period)]
