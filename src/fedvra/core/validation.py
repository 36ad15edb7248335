"""Reading and judging what users give: numbers and tables that samplers, work and the like hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.errors import UsageError, require


def frozen_array(values: Any, dtype: type | None, what: str) -> NDArray[Any]:
    """A read-only copy, so that the caller's later edits cannot change a run."""
    try:
        array = np.array(values, dtype=dtype)
    except (TypeError, ValueError):
        raise UsageError(f"{what} must be numbers, and a table must have rows of one length.") from None
    array.flags.writeable = False
    return array


def check_whole(name: str, value: object, least: int = 1) -> int:
    """Give back ``value``, which must be a whole number no smaller than ``least``; True and False are not numbers here.

    >>> check_whole("m", 0)
    Traceback (most recent call last):
    fedvra.core.errors.UsageError: m must be at least 1, got 0.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UsageError(f"{name} must be a whole number, got {value!r}.")
    require(int(value) >= least, f"{name} must be at least {least}, got {value}.")
    return int(value)


def check_probabilities(name: str, p: NDArray[np.float64]) -> None:
    """Require 0 < p <= 1 of a number or a table [N]; NaN is refused too."""
    wrong = np.flatnonzero(~((p > 0) & (p <= 1)))
    if wrong.size:
        where = f" for client {wrong[0]}" if p.ndim else ""
        raise UsageError(f"{name} must be in (0, 1], got {p.flat[wrong[0]]:g}{where}.")
