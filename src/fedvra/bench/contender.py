"""The far end of a contender: a process that runs rounds of one checkout or of a bare loop, so many as it is told to.

It is started as a script, with the checkout's ``src`` first on the path and the number of an open pipe. The bench is that
of the folder this file is in, everything else the checkout's: so both sides are timed on the same workload, in the same way,
even where the checkout knows neither the workload nor a bench. Between orders it waits and uses no processor time.
"""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvra.bench.jobs import Job

FOREVER = 10**9


class ListenerGoneError(Exception):
    """Nobody is listening any more."""


def serve(pipe: Connection, job: Job) -> None:
    """Run a first round, answer ("ran", (its seconds, its path)); for every number k that arrives run k rounds, answer alike.

    A round is all there is from the end of the one before to its own, whatever happens in between.
    """
    run = job.prepare()
    left, begun = 1, time.perf_counter()

    def after_a_round(record: dict[str, Any]) -> None:
        nonlocal left, begun
        left -= 1
        if left:
            return
        pipe.send(("ran", (time.perf_counter() - begun, record.get("path", ""))))
        try:
            left = pipe.recv()
        except EOFError:
            raise ListenerGoneError from None
        begun = time.perf_counter()

    try:
        run(FOREVER, after_a_round)
    except ListenerGoneError:
        return


def use_checkout(source: Path) -> None:
    """Import ``fedvra`` from ``source``, but its bench from here."""
    import fedvra

    found = Path(fedvra.__file__).resolve().parents[1]
    if found != source:
        raise ImportError(f"fedvra was imported from {found}, not from {source}")
    bench = ModuleType("fedvra.bench")
    bench.__path__ = [str(Path(__file__).parent)]
    sys.modules["fedvra.bench"] = bench


def main(number: str, source: str) -> None:
    pipe = Connection(int(number))
    try:
        use_checkout(Path(source))
        serve(pipe, pipe.recv())
    except Exception as error:  # whatever a checkout of any age may raise: the near end makes a sentence of it
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
