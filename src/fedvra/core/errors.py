"""The errors a user may meet. Each message is one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FedvraError(Exception):
    """Something failed while running; the command line exits with code 1."""

    exit_code = 1


class UsageError(FedvraError, ValueError):
    """What was asked for cannot be: a bad value, an unknown name, a folder in use. Exit code 2."""

    exit_code = 2


class DivergedError(FedvraError):
    """x0 stopped being finite; the run ended at that round and what it wrote stays readable."""

    def __init__(self, message: str, round: int) -> None:
        super().__init__(message)
        self.round = round

    def __reduce__(self) -> Any:
        return type(self), (*self.args, self.round), vars(self)


class StopRun(Exception):  # noqa: N818 - no error: like StopIteration
    """Raised by whoever looks on (a callback, an observer, a ``progress`` function): the run ends with this round.

    It has finished then; the message says why, and is in the last record and in the summary as ``stopped``.
    """


class RunInterrupt(KeyboardInterrupt):
    """Somebody pressed Ctrl-C, and all there was to save is saved; the message says how to go on."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error for a name nobody registered, naming the nearest known one.

    >>> str(unknown_name("algorithm", "fedvrra", ["fedavg", "fedvra"]))
    "there is no algorithm 'fedvrra': did you mean 'fedvra'? Known: fedavg, fedvra."
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return UsageError(f"there is no {kind} {name!r}:{hint} Known: {', '.join(names)}.")


def require(condition: bool, message: str) -> None:
    """Raise a :class:`UsageError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise UsageError(message)
