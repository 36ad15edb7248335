"""The errors a user may meet. Each message is one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FedvraError(Exception):
    """Base class of all errors of this library; the command line exits with code 1.

    >>> import fedvra as fv
    >>> issubclass(fv.UsageError, fv.FedvraError) and issubclass(fv.DivergedError, fv.FedvraError)
    True
    """

    exit_code = 1


class UsageError(FedvraError, ValueError):
    """The request cannot be met: a bad value, an unknown name, a folder in use. Exit code 2.

    >>> import fedvra as fv
    >>> fv.FedDyn(alpha=0)
    Traceback (most recent call last):
        ...
    fedvra.core.errors.UsageError: alpha must be > 0, got 0.
    """

    exit_code = 2


class DivergedError(FedvraError):
    """x0 is no longer finite. The run ended in ``error.round``; what it had written stays readable.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))

    >>> try:
    ...     fv.simulate(fv.FedAvg(), problem=costs, sampler=fv.Full(), work=fv.Steps(300), lr=99.0, rounds=9, workers=1)
    ... except fv.DivergedError as error:
    ...     print(error.round)
    1
    """

    def __init__(self, message: str, round: int) -> None:
        super().__init__(message)
        self.round = round

    def __reduce__(self) -> Any:
        return type(self), (*self.args, self.round), vars(self)


class StopRun(Exception):  # noqa: N818 - no error: like StopIteration
    """Raise it in a callback, an observer or a ``progress`` function to end the run with this round.

    It has finished then; the message says why, and is in the last record and in the summary as ``stopped``.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))

    >>> def enough(record):
    ...     if record["round"] == 3:
    ...         raise fv.StopRun("three are enough")
    >>> given = {"problem": costs, "sampler": fv.Full(), "work": fv.Steps(1)}
    >>> fv.simulate(fv.FedAvg(), **given, rounds=100, progress=enough).metrics[-1]["stopped"]
    'three are enough'
    """


class RunInterrupt(KeyboardInterrupt):
    """Somebody pressed Ctrl-C, and everything is saved; the message says how to resume."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error for a name nobody registered, naming the nearest known one.

    >>> str(unknown_name("algorithm", "fedvrra", ["fedavg", "fedvra"]))
    "there is no algorithm 'fedvrra': did you mean 'fedvra'? Known: fedavg, fedvra."
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return UsageError(f"there is no {kind} {name!r}{hint} Known: {', '.join(names)}.")


def require(condition: bool, message: str) -> None:
    """Raise a :class:`UsageError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise UsageError(message)
