"""Two checkouts of this project side by side: is the present code slower than another?

Each side is a process of its own (they have the same package name), and both are run alike. They take turns pass by pass, and
who goes first changes with every pass, so that what the machine does meanwhile meets both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import fedvra
from fedvra.bench import contender
from fedvra.bench.duel import Duel
from fedvra.bench.workloads import Job, Workload
from fedvra.core.errors import FedvraError, UsageError
from fedvra.state.client_store import MemoryBudget

WARM_UP_SECONDS = (2.0, 20.0)
"""At least, and at most where visiting every client takes longer."""


@dataclass(frozen=True)
class Checkout:
    """A folder with ``src/fedvra``, and what to call it."""

    name: str
    source: Path
    """What goes on the path."""

    @classmethod
    def at(cls, folder: str | Path) -> Checkout:
        folder = Path(folder).expanduser().resolve()
        if not (folder / "src" / "fedvra" / "__init__.py").is_file():
            raise UsageError(
                f"--against: {folder} is no checkout of fedvra, it has no src/fedvra: give the folder that holds src."
            )
        return cls(_commit(folder) or folder.name, folder / "src")

    @classmethod
    def present(cls) -> Checkout:
        """The code that is running."""
        source = Path(fedvra.__file__).resolve().parents[1]
        return cls(_commit(source.parent) or "installed", source)


def _commit(folder: Path) -> str | None:
    """The commit that is checked out, with a + where files differ from it; None where git has nothing to say of the folder."""
    if not (folder / ".git").exists():
        return None
    try:
        answers = [
            subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return answers[0] + ("+" if answers[1] else "")


class Side:
    """A process that runs a job on one checkout."""

    def __init__(self, checkout: Checkout, job: Job) -> None:
        self.checkout = checkout
        self._pipe, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        before = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(checkout.source), *([before] if before else [])])
        # -P: the folder of the script is not to be on the path, or its modules could shadow others.
        command = [sys.executable, "-P", contender.__file__, str(theirs.fileno()), str(checkout.source)]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        self._ask(job)  # answered after the first round, so that what cannot be run is known at once

    def run(self, rounds: int) -> float:
        """Seconds per round over so many rounds."""
        return self._ask(rounds) / rounds

    def close(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, what: Job | int) -> float:
        try:
            self._pipe.send(what)
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            kind, value = "failed", self._last_words()
        if kind == "failed":
            self.close()
            raise FedvraError(f"{self.checkout.name} ({self.checkout.source}) cannot be timed: {value.rstrip('.')}.")
        return float(value)

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it ended without a word")


def measure_against(
    name: str,
    workload: Workload,
    other: Checkout,
    workers: int,
    passes: int = 7,
    rounds: int = 3,
    starts: int = 1,
    algorithms: Sequence[str] = ("fedavg", "fedvra"),
    path: str = "auto",
    precision: str = "float32",
) -> Iterator[Duel]:
    """Time the present code and another checkout in turn, ``passes`` times over, for each algorithm.

    All that ``starts`` times, with new processes: two processes of the same code may differ by a per cent or two for as long
    as they live, by where their memory happens to be.
    """
    present = Checkout.present()
    for algorithm in algorithms:
        job = Job(workload, algorithm, workers, _memory_of_one_side(), path, precision)
        seconds: list[tuple[float, float]] = []
        for start in range(starts):
            if start % 2 == 0:
                seconds += _take_turns(present, other, job, passes, rounds)
            else:  # who is started first may matter as well
                seconds += [(ours, theirs) for theirs, ours in _take_turns(other, present, job, passes, rounds)]
        our_seconds, other_seconds = zip(*seconds, strict=True)
        yield Duel(
            workload=name,
            title=workload.title,
            algorithm=algorithm,
            workers=workers,
            rounds=rounds,
            starts=starts,
            ours=present.name,
            other=other.name,
            our_seconds=our_seconds,
            other_seconds=other_seconds,
        )


def _take_turns(first: Checkout, second: Checkout, job: Job, passes: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds per round of (first, second) in every pass."""
    with ExitStack() as open_sides:
        sides = []
        for checkout in (first, second):
            sides.append(Side(checkout, job))
            open_sides.callback(sides[-1].close)
        _settle(sides, job)
        found = []
        for turn in range(passes):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            took = {k: sides[k].run(rounds) for k in order}
            found.append((took[0], took[1]))
        return found


def _settle(sides: Sequence[Side], job: Job) -> None:
    """Rounds before the clock starts, as many on both sides: until every client was visited, within limits of time."""
    seconds = max(side.run(1) for side in sides)
    least, most = (max(1, round(limit / seconds)) for limit in WARM_UP_SECONDS)
    rounds = min(max(-(-job.workload.clients // job.workload.cohort), least), most)
    for side in sides:
        side.run(rounds)


def _memory_of_one_side() -> int:
    """Bytes of client state: what does not fit goes to disk, and both sides are to reach that point at the same time."""
    half = MemoryBudget.half_of_what_is_free().limit
    assert half is not None
    return int(0.8 * half)  # data and models need some, too
