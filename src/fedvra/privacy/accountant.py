r"""Epsilon of a series of noised answers, by Rényi differential privacy (Mironov 2017; Mironov, Talwar and Zhang 2019).

Rényi divergences of answers add up, so an account is a list of kinds of answers with how many there were of each. The library
``dp-accounting`` (Google) computes the divergence of one answer and the epsilon of a sum; what
is here keeps one vector per kind, since a run asks for thousands of epsilons of a few kinds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.errors import UsageError, require

MOST = 1 << 40
"""Steps that nobody takes."""


class Answer(NamedTuple):
    """A kind of noised answer: a sum over records, each of which is part of it with probability ``rate``."""

    rate: float
    noise: float
    """The standard deviation of the noise, in units of what one record can change."""


Account = Mapping[Answer, int]
"""How many answers of each kind were given."""


def require_accountant() -> None:
    """Refuse, in a sentence, where the library is not installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise UsageError("privacy needs an accountant: pip install 'fedvra[privacy]'.") from None


def epsilon(account: Account, delta: float) -> float:
    """The epsilon of all these answers together: what they promise is (epsilon, delta)-differential privacy.

    Infinite where an answer came without noise.
    """
    given = {answer: count for answer, count in account.items() if count}
    if not given:
        return 0.0
    if not all(answer.noise for answer in given):
        return math.inf
    require_accountant()
    from dp_accounting.rdp import compute_epsilon

    orders = _divergences(next(iter(given)))[0]
    total = sum(count * _divergences(answer)[1] for answer, count in given.items())
    return float(compute_epsilon(orders, total, delta)[0])


def most_steps(step: Answer, others: Account, delta: float, max_epsilon: float) -> int:
    """How many answers of a kind may be given besides others before epsilon exceeds ``max_epsilon``."""

    def within(steps: int) -> bool:
        return epsilon({**others, step: others.get(step, 0) + steps}, delta) <= max_epsilon

    if not within(0):
        return 0
    low, high = 0, 1
    while high < MOST and within(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def noise_for(target: float, rate: float, steps: int, delta: float, others: Account) -> float:
    """The least noise, to three digits and rounded up, with which so many steps stay within an epsilon."""
    spent = epsilon(others, delta)
    require(
        spent < target,
        f"the other answers alone cost an epsilon of {spent:.3g}: allow for more, or tell n_i with more noise.",
    )

    def within(noise: float) -> bool:
        return epsilon({**others, Answer(rate, noise): steps}, delta) <= target

    low, high = 0.0, 1.0
    while not within(high):
        low, high = high, 2 * high
        require(high < 1e6, f"no amount of noise makes {steps} steps stay within an epsilon of {target:g}.")
    while high - low > 5e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 2)
    return round(math.ceil(high / unit) * unit, 12)


def together(accounts: Iterable[Account]) -> dict[Answer, int]:
    """One account of several on the same records."""
    found: dict[Answer, int] = {}
    for account in accounts:
        for answer, count in account.items():
            found[answer] = found.get(answer, 0) + count
    return found


@lru_cache(maxsize=100_000)
def _divergences(answer: Answer) -> tuple[Floats, Floats]:
    """Orders, and the Rényi divergence of one answer at each."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    event = GaussianDpEvent(answer.noise)
    talker = logging.getLogger("absl")
    with suspended(talker):  # it tells of each order that it leaves out, which costs tightness and nothing else
        accountant.compose(event if answer.rate >= 1 else PoissonSampledDpEvent(answer.rate, event))
    return np.asarray(accountant.orders), np.asarray(accountant.rdp)


@contextmanager
def suspended(talker: logging.Logger) -> Iterator[None]:
    """Nothing is logged meanwhile."""
    before, talker.disabled = talker.disabled, True
    try:
        yield
    finally:
        talker.disabled = before
