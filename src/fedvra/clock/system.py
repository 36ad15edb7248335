"""What a round costs in time: devices, networks, a deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvra.clock.windows import Windows
from fedvra.core.cohort import Cohort, Floats
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import frozen_array

Mask = NDArray[np.bool_]
AMOUNTS = ("step", "up", "down", "latency")
KINDS = {"uniform": 2, "lognormal": 2, "exponential": 1}
"""Distributions by name, with how many numbers each takes."""


class Timing(NamedTuple):
    """How a round went, in simulated seconds."""

    on_time: Mask
    """Whose reply came before the deadline."""
    seconds: float
    """Until the server closed the round."""


@dataclass(frozen=True)
class System(Value):
    """Devices and networks: how long each client takes, and how long the server waits.

    Client i, asked at time T, answers at T + latency_i + down/down_i + Q_i*step_i + up/up_i, with ``down`` and ``up`` the bytes
    that are sent; later where it is not reachable all the time. The server closes the round when the last has answered, or at
    the deadline. A later reply is not counted: the client's dual stays what it was, and lam = sum_i omega_i*lam_i holds.

    ``step``, ``up``, ``down`` and ``latency`` are numbers; or one per client (a trace of devices, gone through again where
    there are more clients); or a table [R, N] over rounds, which begins again; or ``"lognormal:MEDIAN,SIGMA"``,
    ``"uniform:LOW,HIGH"`` or ``"exponential:MEAN"``, drawn once for each client under the run's seed.

    Args:
        step: seconds of a local step.
        up, down: bytes per second that a client sends and receives.
        latency: seconds besides, per round.
        jitter: each client's time for steps is multiplied by a lognormal factor with this sigma, anew in every round.
        deadline: seconds the server waits; None: for everybody.
        available: when clients are reachable.

    >>> System(step=0.5, up=1000, down=4000).durations(Cohort(0, 2, *map(np.array, ([0, 1], [1, 1], [2, 4], [9, 9],
    ...     [0.5, 0.5], [0.1, 0.1]))), now=0, up=2000, down=4000)
    array([4., 5.])
    """

    step: Any = 0.0
    up: Any = math.inf
    down: Any = math.inf
    latency: Any = 0.0
    jitter: float = 0.0
    deadline: float | None = None
    available: Windows | None = None

    _read_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in AMOUNTS:
            value = getattr(self, name)
            if isinstance(value, str):
                _read(name, value)
                continue
            table = frozen_array(value, np.float64, f"system: {name}")
            fine = table > 0 if name in ("up", "down") else table >= 0
            bound = "> 0" if name in ("up", "down") else ">= 0"
            require(
                table.size > 0 and table.ndim <= 2 and bool(fine.all()),
                f"system: {name} must be {bound}: a number, one per client, or a table of rounds and clients.",
            )
            object.__setattr__(self, name, table if table.ndim else float(table))
        require(
            self.jitter >= 0 and math.isfinite(self.jitter), f"system: jitter must be 0 or more, got {self.jitter}."
        )
        require(self.deadline is None or self.deadline > 0, f"system: deadline must be > 0, got {self.deadline}.")
        require(
            self.available is None or isinstance(self.available, Windows),
            f"system: available must be fv.Windows(period=86400, duty=0.3) or the like, got {self.available!r}.",
        )

    def durations(self, cohort: Cohort, now: float, up: int, down: int) -> Floats:
        """Seconds from being asked, at ``now``, to having answered; ``up`` and ``down`` are bytes per client."""
        step, speed_up, speed_down, latency = (self._amount(k, cohort) for k in range(len(AMOUNTS)))
        busy = latency + down / speed_down + cohort.steps * step * self._jitter(cohort) + up / speed_up
        if self.available is None:
            return busy
        pairs = zip(cohort.clients.tolist(), busy.tolist(), strict=True)
        return np.array([self.available.finish(now, each, client, cohort.seed) - now for client, each in pairs])

    def judge(self, durations: Floats, arrived: Mask) -> Timing:
        """Who is counted of those whose reply arrives at all, and when the server closes the round.

        It waits for the deadline where somebody has not answered by then; without one, for the last reply that arrives.
        """
        if self.deadline is None:
            return Timing(np.ones(len(durations), dtype=bool), float(durations[arrived].max(initial=0.0)))
        on_time = durations <= self.deadline
        everybody = bool((on_time & arrived).all())
        return Timing(on_time, float(durations.max(initial=0.0)) if everybody else float(self.deadline))

    def _amount(self, which: int, cohort: Cohort) -> Floats:
        value = getattr(self, AMOUNTS[which])
        if isinstance(value, str):
            return _drawn(value, which, cohort)[cohort.clients]
        table = np.asarray(value)
        if table.ndim == 0:
            return np.full(len(cohort), float(table))
        row = table if table.ndim == 1 else table[cohort.round % len(table)]
        return np.asarray(row[cohort.clients % len(row)])

    def _jitter(self, cohort: Cohort) -> Floats | float:
        if not self.jitter:
            return 1.0
        drawn = [stream(cohort.seed, Purpose.CLOCK, cohort.round, int(c)).normal() for c in cohort.clients]
        return np.exp(self.jitter * np.array(drawn))


def _drawn(text: str, which: int, cohort: Cohort) -> Floats:
    """One number for each of the N clients, the same in every round."""
    kind, numbers = _read(AMOUNTS[which], text)
    rng = stream(cohort.seed, Purpose.CLOCK, which)
    if kind == "lognormal":
        return numbers[0] * np.exp(numbers[1] * rng.normal(size=cohort.total))
    if kind == "uniform":
        return rng.uniform(numbers[0], numbers[1], size=cohort.total)
    return rng.exponential(numbers[0], size=cohort.total)


def _read(name: str, text: str) -> tuple[str, list[float]]:
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(number) for number in rest.split(",")]
    except ValueError:
        numbers = []
    if kind not in KINDS or len(numbers) != KINDS[kind]:
        raise UsageError(
            f"system: {name} must be a number, one per client, or lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH or "
            f"exponential:MEAN, got {text!r}."
        )
    fine = all(math.isfinite(number) for number in numbers) and numbers[0] > 0 and numbers[-1] >= 0
    require(
        fine and (kind != "uniform" or numbers[0] <= numbers[1]),
        f"system: {name}: the numbers of {text!r} must be positive, and LOW no greater than HIGH.",
    )
    return kind, numbers
