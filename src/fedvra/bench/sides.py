"""Contenders as processes of their own, that take turns: what the machine does meanwhile meets all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple

from fedvra.bench import contender
from fedvra.bench.resident import family, memory_mb, processor_seconds
from fedvra.bench.workloads import Workload
from fedvra.core import accelerators
from fedvra.core.errors import FedvraError
from fedvra.state.client_store import MemoryBudget

WARM_UP_SECONDS = (2.0, 20.0)
"""At least, and at most where visiting every client takes longer."""


class Turn(NamedTuple):
    """What a round took on the average of a turn."""

    seconds: float
    processor: float
    """Seconds of all processes together."""
    memory_mb: float
    """Of all processes at the end of the turn."""


FAR_END = (sys.executable, "-P", contender.__file__)
"""What is started. -P: the folder of the script is not to be on the path, or its modules could shadow others."""


class Side:
    """A process that runs a job on one checkout (``source``: what goes on the path)."""

    def __init__(self, name: str, source: Path, job: Any, far_end: Sequence[str] = FAR_END) -> None:
        """
        Args:
            job: what to run: a ``Job``, or what another far end than ours is told.
            far_end: the command that is started. It is given the number of an open pipe and the source.
        """
        self.name, self.source = name, source
        self._pipe, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        before = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(source), *([before] if before else [])])
        self._process = subprocess.Popen(
            [*far_end, str(theirs.fileno()), str(source)],
            env={**os.environ, "PYTHONPATH": path, accelerators.VARIABLE: ""},  # all of them compute on the CPU
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        # Answered after the first round, so that what cannot be run is known at once.
        self.startup_seconds, self.path = self._ask(job)

    def run(self, rounds: int) -> Turn:
        """So many rounds."""
        pids = family(self._process.pid)
        before = processor_seconds(*pids)
        seconds, self.path = self._ask(rounds)
        used = processor_seconds(*pids) - before
        return Turn(seconds / rounds, used / rounds, memory_mb(*pids))

    def close(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, what: Any) -> tuple[float, str]:
        kind: str
        value: Any
        try:
            self._pipe.send(what)
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            kind, value = "failed", self._last_words()
        if kind == "failed":
            self.close()
            raise FedvraError(f"{self.name} ({self.source}) cannot be timed: {value.rstrip('.')}.")
        seconds, path = value
        return float(seconds), str(path)

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it ended without a word")


class Timed(NamedTuple):
    """What a contender came to."""

    turns: list[Turn]
    """One per pass."""
    startup_seconds: float
    """From data in memory to the end of the first round, of the first start."""
    path: str


def take_turns(starts: Sequence[Callable[[], Side]], workload: Workload, passes: int, rounds: int) -> list[Timed]:
    """Run rounds of all contenders in turn, ``passes`` times over; who goes first changes with every pass.

    Clients have been met when the clock starts. On a ``cold`` workload they have not: every pass has new processes.
    """
    found: list[Timed | None] = [None] * len(starts)
    with ExitStack() as open_sides:
        sides: list[Side] = []

        def start(k: int) -> Side:
            side = starts[k]()
            open_sides.callback(side.close)
            return side

        if not workload.cold:
            sides = [start(k) for k in range(len(starts))]
            _settle(sides, workload)
        for number in range(passes):
            for at in range(len(starts)):
                k = (at + number) % len(starts)
                side = sides[k] if sides else start(k)
                turn = side.run(rounds)
                before = found[k] or Timed([], side.startup_seconds, side.path)
                found[k] = before._replace(turns=[*before.turns, turn])
                if not sides:
                    open_sides.close()
    return [timed for timed in found if timed is not None]


def _settle(sides: Sequence[Side], workload: Workload) -> None:
    """Rounds before the clock starts, as many on every side: until every client was visited, within limits of time."""
    seconds = max(side.run(1).seconds for side in sides)
    least, most = (max(1, round(limit / seconds)) for limit in WARM_UP_SECONDS)
    rounds = min(max(-(-workload.clients // workload.cohort), least), most)
    for side in sides:
        side.run(rounds)


def memory_of_one_side(sides: int = 2) -> int:
    """Bytes of client state: what does not fit goes to disk, and all sides are to reach that point at the same time."""
    half = MemoryBudget.half_of_what_is_free().limit
    assert half is not None
    return int(1.6 * half / sides)  # data and models need some, too
