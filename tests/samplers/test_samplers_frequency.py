"""Samplers: the stated p_i^r is how often a client is drawn."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvra.core.errors import UsageError
from fedvra.samplers import Bernoulli, Cyclic, Full, Participation, PowerOfChoice, Uniform, Weighted
from fedvra.samplers.weighted import systematic
from sampling import (
    GROUPS,
    UNEQUAL,
    N,
    assert_within_five_sigma,
    counts,
    draws,
    no_losses,
    some_losses,
    stated,
    weights,
)

EXACT = {
    "uniform": Uniform(5),
    "uniform-all-but-one": Uniform(N - 1),
    "full": Full(),
    "bernoulli": Bernoulli(0.3),
    "bernoulli-each": Bernoulli(UNEQUAL),
    "bernoulli-spread": Bernoulli(0.05, to=0.9),
    "weighted": Weighted(UNEQUAL),
    "weighted-certain": Weighted([1.0, 1.0, *np.full(N - 2, 0.2)]),
    "cyclic-reshuffled": Cyclic(5, reshuffle=True),
    "cyclic-groups-reshuffled": Cyclic(groups=GROUPS, reshuffle=True),
}


@pytest.mark.parametrize("sampler", EXACT.values(), ids=EXACT.keys())
def test_frequency_over_seeds_of_one_round_is_the_stated_p(sampler):
    assert sampler.exact
    sampler.check(N)
    tries = 4000
    cohorts = [sampler.draw(7, seed, N, no_losses) for seed in range(tries)]
    assert_within_five_sigma(counts(cohorts), tries, stated(sampler))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.data())
def test_uniform_frequency(total, data):
    m = data.draw(st.integers(1, total))
    cohorts = draws(Uniform(m), 1500, total)
    assert all(len(cohort) == m for cohort in cohorts)
    assert_within_five_sigma(counts(cohorts, total), 1500, np.full(total, m / total))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.floats(0.03, 1), st.booleans())
def test_bernoulli_frequency_and_independence(total, p, one_for_all):
    sampler = Bernoulli(p if one_for_all else np.full(total, p))
    rounds = 2000
    cohorts = draws(sampler, rounds, total)
    assert_within_five_sigma(counts(cohorts, total), rounds, np.full(total, p))
    sizes = np.array([len(cohort) for cohort in cohorts])
    if total >= 5 and 0.1 < p < 0.9:  # independent coins: the variance of the size is N p (1 - p)
        assert sizes.var() == pytest.approx(total * p * (1 - p), rel=0.2)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(weights())
def test_weighted_frequency(p):
    sampler = Weighted(p)
    sampler.check(len(p))
    cohorts = draws(sampler, 2500, len(p))
    assert {len(cohort) for cohort in cohorts} == {round(p.sum())}
    assert_within_five_sigma(counts(cohorts, len(p)), 2500, stated(sampler, len(p)))


def test_weighted_with_very_unequal_p():
    p = np.array([1.0, 0.999, 0.9, 0.05, 0.04, 0.008, 0.002, 0.001])
    sampler = Weighted(p)
    sampler.check(len(p))
    cohorts = draws(sampler, 20_000, len(p))
    assert {len(cohort) for cohort in cohorts} == {3}
    assert_within_five_sigma(counts(cohorts, len(p)), 20_000, p)
    np.testing.assert_array_equal(stated(sampler, len(p)), p)


def test_weighted_with_equal_p_gives_every_pair_its_chance():
    """The random order matters: systematic sampling in a fixed order would never take some pairs together."""
    total, m, rounds = 6, 3, 6000
    together = np.zeros((total, total))
    for cohort in draws(Weighted(np.full(total, m / total)), rounds, total):
        together[np.ix_(cohort, cohort)] += 1
    pairs = together[np.triu_indices(total, k=1)]
    assert_within_five_sigma(pairs, rounds, np.full(len(pairs), m * (m - 1) / (total * (total - 1))))


def test_systematic_sampling_on_the_edges():
    assert systematic(np.full(4, 0.5), 0.0).tolist() == [0, 2], "an interval holds its lower end"
    assert systematic(np.full(4, 0.5), 0.5).tolist() == [1, 3], "and not its upper end"
    assert systematic(np.ones(30), np.nextafter(1, 0)).tolist() == list(range(30)), "u + 29 rounds to 30, off the end"
    p, u = np.array([0.3] * 10 + [1.0, 1.0, 0.5, 0.5]), 0.9999999999999994
    rounded = np.searchsorted(np.cumsum(p), u + np.arange(6), side="right")
    assert rounded.tolist() == [3, 6, 10, 11, 11, 13], "left to itself, rounding hits 11 twice"
    assert systematic(p, u).tolist() == [3, 6, 10, 11, 12, 13]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(weights(), st.floats(0, 1, exclude_max=True))
def test_systematic_sampling_takes_m_different_ones_whatever_the_rounding(p, u):
    hit = systematic(p, u)
    assert len(hit) == round(p.sum())
    assert (np.diff(hit) > 0).all()
    assert 0 <= hit[0] <= hit[-1] < len(p)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.data(), st.booleans())
def test_cyclic_visits_everyone_once_per_pass(total, data, reshuffle):
    m = data.draw(st.integers(1, total))
    sampler = Cyclic(m, reshuffle=reshuffle)
    groups = -(-total // m)
    np.testing.assert_allclose(stated(sampler, total), 1 / groups)
    cohorts = draws(sampler, 3 * groups, total)
    for lap in range(3):
        assert (counts(cohorts[lap * groups : (lap + 1) * groups], total) == 1).all()
    sizes = [len(cohort) for cohort in cohorts]
    assert max(sizes) <= m
    assert max(sizes) - min(sizes) <= 1
    if not reshuffle:
        for first, again in zip(cohorts[:groups], cohorts[groups : 2 * groups], strict=True):
            np.testing.assert_array_equal(first, again)


def test_cyclic_with_groups_keeps_them_together():
    fixed = draws(Cyclic(groups=GROUPS), 6)
    assert [cohort.tolist() for cohort in fixed] == GROUPS * 2
    laps = [draws(Cyclic(groups=GROUPS, reshuffle=True), 30)[k : k + 3] for k in range(0, 30, 3)]
    orders = [[cohort.tolist() for cohort in lap] for lap in laps]
    assert all(sorted(order) == sorted(GROUPS) for order in orders)
    assert len({str(order) for order in orders}) > 1


# --- power of choice ---------------------------------------------------------------------------------------------------


def test_power_of_choice_takes_the_greatest_losses_among_its_candidates():
    asked = []

    def losses(clients):
        asked.append(clients)
        return some_losses(clients)

    sampler = PowerOfChoice(m=3, candidates=7)
    for round in range(50):
        cohort = sampler.draw(round, 0, N, losses)
        candidates = asked.pop()
        assert len(candidates) == len(set(candidates.tolist())) == 7
        best = candidates[np.argsort(-some_losses(candidates))[:3]]
        np.testing.assert_array_equal(cohort, np.sort(best))
    everyone = PowerOfChoice(m=3, candidates=N).draw(0, 0, N, some_losses)
    np.testing.assert_array_equal(everyone, np.sort(np.argsort(-some_losses(np.arange(N)))[:3]))


def test_power_of_choice_estimate_starts_at_m_over_n_and_approaches_the_frequency():
    m, candidates, rounds = 3, 7, 4000
    sampler = PowerOfChoice(m, candidates)
    assert not sampler.exact
    np.testing.assert_allclose(stated(sampler), m / N)
    history = Participation.none(N)
    for cohort in draws(sampler, rounds, losses=some_losses):
        history = history.after(cohort)
    estimate = sampler.probabilities(rounds, np.arange(N), N, history)
    np.testing.assert_allclose(estimate, history.counts / rounds, atol=0.01)
    # While the losses stay as they are there is a formula: be a candidate, along with fewer than m clients of greater loss.
    better = np.argsort(np.argsort(-some_losses(np.arange(N))))
    truth = [
        candidates
        / N
        * sum(comb(k, j) * comb(N - 1 - k, candidates - 1 - j) for j in range(m))
        / comb(N - 1, candidates - 1)
        for k in better.tolist()
    ]
    assert sum(truth) == pytest.approx(m)
    assert_within_five_sigma(history.counts, rounds, np.array(truth))
    np.testing.assert_allclose(estimate, truth, atol=0.02)
    assert (estimate > 0).all()
    assert estimate.max() == candidates / N, "nobody takes part without being a candidate"


def test_power_of_choice_with_equal_losses_is_uniform():
    cohorts = draws(PowerOfChoice(m=3, candidates=8), 4000, losses=lambda clients: np.zeros(len(clients)))
    assert_within_five_sigma(counts(cohorts), 4000, np.full(N, 3 / N))


def test_power_of_choice_takes_a_nan_loss_for_the_greatest():
    losses = np.arange(float(N))
    losses[4] = np.nan
    assert PowerOfChoice(2, N).draw(0, 0, N, lambda clients: losses[clients]).tolist() == [4, N - 1]


def test_power_of_choice_refuses_losses_of_another_shape():
    with pytest.raises(UsageError, match=r"losses of 6 clients came with shape \[2\]"):
        PowerOfChoice(3, 6).draw(0, 0, N, lambda clients: np.zeros(2))
