"""Cohorts drawn and counted: what the tests of samplers share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fedvra.samplers import Participation

N = 12
UNEQUAL = np.linspace(0.05, 0.95, N)
"""Inclusion probabilities with sum 6."""
GROUPS = [[0, 5], [1, 2, 3, 4], [6, 7, 8, 9, 10, 11]]


def no_losses(clients):
    raise AssertionError("this sampler has no need of anyone's loss")


def some_losses(clients):
    return np.sin(1.0 + clients)


def draws(sampler, rounds, total=N, seed=0, losses=no_losses):
    return [sampler.draw(r, seed, total, losses) for r in range(rounds)]


def counts(cohorts, total=N):
    return np.bincount(np.concatenate(cohorts), minlength=total)


def stated(sampler, total=N, round=0):
    return sampler.probabilities(round, np.arange(total), total, Participation.none(total))


def assert_within_five_sigma(count, rounds, p):
    """Binomial counts against their mean; where p = 1 the count must be exact."""
    sigma = np.sqrt(rounds * p * (1 - p))
    off = np.abs(count - rounds * p)
    assert (off <= 5 * sigma + 1e-9).all(), f"off by {np.max(off / np.maximum(sigma, 1e-9)):.1f} sigma"


@st.composite
def weights(draw, least=0.02):
    """p [N] whose sum is a whole number m: arbitrary values, pulled towards m/N until all are in [least, 1]."""
    total = draw(st.integers(2, 15))
    m = draw(st.integers(1, total))
    raw = np.array(draw(st.lists(st.floats(0.01, 1), min_size=total, max_size=total)))
    p = m * raw / raw.sum()
    flat = m / total
    above, below = p.max() - flat, flat - p.min()
    pull = min(1.0, (1 - flat) / above if above > 0 else 1.0, (flat - least) / below if below > 0 else 1.0)
    return np.clip(flat + pull * (p - flat), least, 1.0)
