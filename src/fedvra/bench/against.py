"""Two checkouts of this project side by side: is the present code slower than another?

Each side is a process of its own (they have the same package name), and both are run alike.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fedvra
from fedvra.bench.duel import Duel
from fedvra.bench.jobs import Simulation
from fedvra.bench.sides import Side, memory_of_one_side, take_turns
from fedvra.bench.workloads import Workload
from fedvra.core.errors import UsageError


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
        job = Simulation(workload, algorithm, workers, memory_of_one_side(), path, precision)
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


def _take_turns(
    first: Checkout, second: Checkout, job: Simulation, passes: int, rounds: int
) -> list[tuple[float, float]]:
    """Seconds per round of (first, second) in every pass."""
    starts = [partial(Side, checkout.name, checkout.source, job) for checkout in (first, second)]
    one, two = take_turns(starts, job.workload, passes, rounds)
    return [(a.seconds, b.seconds) for a, b in zip(one.turns, two.turns, strict=True)]
