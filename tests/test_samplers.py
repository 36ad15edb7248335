"""Samplers: who is drawn, that it depends on (seed, round) alone, and that the stated p_i^r is the true one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedvra.samplers
from fedvra.errors import UsageError
from fedvra.samplers import (
    SAMPLERS,
    Availability,
    Bernoulli,
    Cyclic,
    Full,
    Participation,
    PowerOfChoice,
    Replay,
    Sampler,
    Uniform,
    Weighted,
    parse_sampler,
)
from fedvra.samplers.weighted import systematic

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


# --- what holds for all ----------------------------------------------------------------------------------------------


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


@st.composite
def samplers_and_totals(draw):
    """Any sampler with a number of clients it can serve."""
    total = draw(st.integers(1, 40))
    m = draw(st.integers(1, total))
    p = draw(st.lists(st.floats(0.01, 1), min_size=total, max_size=total))
    deal = draw(st.permutations(range(total)))
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=4)))
    groups = [deal[a:b] for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    cohorts = draw(st.lists(st.lists(st.integers(0, total - 1), unique=True), min_size=6, max_size=6))
    table = draw(st.lists(st.lists(st.booleans(), min_size=total, max_size=total), min_size=1, max_size=5))
    inner: Sampler = draw(
        st.sampled_from(
            [
                Uniform(m),
                Full(),
                Bernoulli(p[0]),
                Bernoulli(p),
                Bernoulli(p[0], to=p[-1]),
                Weighted(np.full(total, m / total)),
                PowerOfChoice(m, draw(st.integers(m, total))),
                Cyclic(m),
                Cyclic(m, reshuffle=True),
                Cyclic(groups=groups, reshuffle=draw(st.booleans())),
                Replay(cohorts),
            ]
        )
    )
    period = draw(st.integers(1, 9))
    around: list[Callable[[], Sampler]] = [
        lambda: inner,
        lambda: Availability(inner, period=period, duty=draw(st.floats(0.05, 1))),
        lambda: Availability(inner, table=table),
        lambda: Availability(inner, function=lambda round, clients: (clients + round) % 3 > 0),
    ]
    return draw(st.sampled_from(around))(), total


@settings(max_examples=150, deadline=None, derandomize=True)
@given(samplers_and_totals(), st.integers(0, 2**63), st.integers(0, 5))
def test_cohorts_are_sorted_sets_of_clients_and_depend_on_seed_and_round_alone(sampler_and_total, seed, round):
    sampler, total = sampler_and_total
    sampler.check(total)
    cohort = sampler.draw(round, seed, total, some_losses)
    assert cohort.dtype == np.int64
    assert (np.diff(cohort) > 0).all()
    assert cohort.size == 0 or (cohort[0] >= 0 and cohort[-1] < total)
    sampler.draw(round + 1 if round < 5 else 0, seed, total, some_losses)  # drawing another round leaves this one alone
    np.testing.assert_array_equal(cohort, sampler.draw(round, seed, total, some_losses))
    p = sampler.probabilities(round, cohort, total, Participation.none(total))
    assert p.shape == cohort.shape
    assert p.dtype == np.float64
    assert ((p > 0) & (p <= 1)).all()


RANDOM = {
    "uniform": Uniform(4),
    "bernoulli": Bernoulli(0.3),
    "bernoulli-each": Bernoulli(UNEQUAL),
    "weighted": Weighted(UNEQUAL),
    "power-of-choice": PowerOfChoice(3, 6),
    "cyclic-reshuffled": Cyclic(4, reshuffle=True),
    "cyclic-groups-reshuffled": Cyclic(groups=GROUPS, reshuffle=True),
    "availability": Availability(Uniform(6), period=4, duty=0.5),
}


@pytest.mark.parametrize("sampler", RANDOM.values(), ids=RANDOM.keys())
def test_other_rounds_and_other_seeds_give_other_cohorts(sampler):
    def distinct(cohorts):
        return len({tuple(cohort.tolist()) for cohort in cohorts})

    assert distinct(draws(sampler, 30, losses=some_losses)) > 2
    assert distinct(sampler.draw(3, seed, N, some_losses) for seed in range(30)) > 2


# --- stated p against what happens -------------------------------------------------------------------------------------

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


# --- availability ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.floats(0.01, 1), st.integers(0, 99))
def test_windows_are_open_for_their_share_of_every_period(period, duty, seed):
    sampler = Availability(Full(), period=period, duty=duty)
    sampler.check(N)
    cohorts = draws(sampler, 2 * period, seed=seed)
    expected = max(1, round(period * duty))
    assert (counts(cohorts[:period]) == expected).all()
    assert (counts(cohorts[period:]) == expected).all()
    for first, again in zip(cohorts[:period], cohorts[period:], strict=True):
        np.testing.assert_array_equal(first, again)


def test_windows_are_one_stretch_and_differ_between_clients_and_seeds():
    cohorts = draws(Availability(Full(), period=8, duty=0.5), 8, total=200)
    there = np.array([np.isin(np.arange(200), cohort) for cohort in cohorts])
    assert (np.abs(np.diff(there.astype(int), axis=0, append=there[:1])).sum(axis=0) == 2).all()
    starts = np.unique(there, axis=1).shape[1]
    assert starts == 8, "every phase should occur among 200 clients"
    other = draws(Availability(Full(), period=8, duty=0.5), 1, total=200, seed=1)
    assert other[0].tolist() != cohorts[0].tolist()


@pytest.mark.parametrize("inner", [Uniform(5), Bernoulli(UNEQUAL), Weighted(UNEQUAL)], ids=lambda s: type(s).__name__)
def test_p_is_the_inner_sampler_s_in_the_rounds_in_which_a_client_is_available(inner):
    rng = np.random.default_rng(0)
    table = rng.random((6, N)) < 0.6
    table[3] = False
    sampler = Availability(inner, table=table)
    sampler.check(N)
    assert sampler.exact
    rounds = 6000
    cohorts = draws(sampler, rounds)
    for r in range(12):
        assert table[r % 6][cohorts[r]].all(), "the table begins again after its last row"
    assert all(len(cohort) == 0 for cohort in cohorts[3::6]), "with nobody available the round is empty"
    chances = rounds // 6 * table.sum(axis=0)
    assert chances.min() > 0
    assert_within_five_sigma(counts(cohorts), chances, stated(sampler))
    np.testing.assert_array_equal(stated(sampler), stated(inner))


def test_availability_by_a_function():
    sampler = Availability(Full(), function=lambda round, clients: clients % 3 == round % 3)
    sampler.check(7)
    assert [cohort.tolist() for cohort in draws(sampler, 3, total=7)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert not Availability(PowerOfChoice(1, 2), period=2, duty=0.5).exact
    with pytest.raises(UsageError, match="one boolean for each of the 7 clients"):
        Availability(Full(), function=lambda round, clients: True).draw(0, 0, 7, no_losses)
    with pytest.raises(UsageError, match="one boolean for each"):
        Availability(Full(), function=lambda round, clients: clients).draw(0, 0, 7, no_losses)


def test_windows_of_different_periods_can_be_nested():
    """Phases of an inner and an outer window must not be the same numbers, or the two would coincide."""
    days, weeks = Availability(Full(), period=24, duty=0.5), Availability(Full(), period=168, duty=0.5)
    nested = Availability(days, period=168, duty=0.5)
    total = 2000
    one, two = (sampler.draw(5, 0, total, no_losses) for sampler in (days, weeks))
    both = nested.draw(5, 0, total, no_losses)
    np.testing.assert_array_equal(both, np.intersect1d(one, two))
    assert_within_five_sigma(len(both), total, 0.25)


# --- replay ------------------------------------------------------------------------------------------------------------


def test_replay_gives_the_cohorts_back_sorted_and_empty_ones_too():
    replay = Replay([[3, 0], [], range(2)])
    replay.check(4)
    assert [cohort.tolist() for cohort in draws(replay, 3, total=4)] == [[0, 3], [], [0, 1]]
    assert not replay.exact
    with pytest.raises(UsageError, match=r"cohorts for 3 rounds .* round 3 was asked for"):
        replay.draw(3, 0, 4, no_losses)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        (None, [[0.5, 0.5], [], [0.25]]),
        (0.3, [[0.3, 0.3], [], [0.3]]),
        ([0.1, 0.2, 0.3, 0.4], [[0.1, 0.4], [], [0.3]]),
        ([[0.9, 0.8], [], [0.7]], [[0.8, 0.9], [], [0.7]]),
        ([[0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0], [0.5, 0.6, 0.7, 0.8]], [[0.1, 0.4], [], [0.7]]),
        (np.full((3, 4), 0.6), [[0.6, 0.6], [], [0.6]]),
        ([0.2, [], [0.7]], [[0.2, 0.2], [], [0.7]]),
    ],
    ids=["m/N", "number", "[N]", "in the order listed", "[R, N]", "array", "mixed"],
)
def test_replay_probabilities(probabilities, expected):
    replay = Replay([[3, 0], [], [2]], probabilities)
    replay.check(4)
    assert replay.exact == (probabilities is not None)
    for r, row in enumerate(expected):
        cohort = replay.draw(r, 0, 4, no_losses)
        p = replay.probabilities(r, cohort, 4, Participation.none(4))
        assert p.tolist() == row


def test_replay_of_a_run_is_that_run():
    sampler = Bernoulli(UNEQUAL)
    cohorts = draws(sampler, 40)
    replay = Replay(cohorts, UNEQUAL)
    replay.check(N)
    for r, cohort in enumerate(cohorts):
        np.testing.assert_array_equal(replay.draw(r, 123, N, no_losses), cohort)
        none = Participation.none(N)
        np.testing.assert_array_equal(
            replay.probabilities(r, cohort, N, none), sampler.probabilities(r, cohort, N, none)
        )


def test_values_do_not_change_when_the_caller_s_arrays_do():
    p, cohort = np.full(N, 0.5), np.array([1, 2])
    sampler, replay = Weighted(p), Replay([cohort], p)
    p[:], cohort[:] = 0.1, 0
    assert stated(sampler).tolist() == [0.5] * N
    assert replay.draw(0, 0, N, no_losses).tolist() == [1, 2]
    assert stated(replay).tolist() == [0.5] * N


# --- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [Uniform(1000), Bernoulli(0.001), Cyclic(1000)], ids=lambda s: type(s).__name__)
def test_a_thousand_of_a_million_are_drawn_without_listing_the_million(sampler):
    million = 1_000_000
    sampler.check(million)
    tracemalloc.start()
    cohort = sampler.draw(0, 0, million, no_losses)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 800 < len(cohort) < 1200
    assert peak < 500_000, f"{peak} bytes: an array of all clients would take 8,000,000"


# --- bad input ---------------------------------------------------------------------------------------------------------

BAD = [
    (lambda: Uniform(11), "m = 11 is more than the number of clients, 10; choose at most 10"),
    (lambda: Uniform(0), "m must be at least 1, got 0"),
    (lambda: Uniform(-3), "m must be at least 1, got -3"),
    (lambda: Uniform(2.5), "m must be a whole number, got 2.5"),
    (lambda: Uniform(True), "m must be a whole number, got True"),
    (lambda: Bernoulli(0), r"p must be in \(0, 1\], got 0\."),
    (lambda: Bernoulli(1.1), r"p must be in \(0, 1\], got 1\.1"),
    (lambda: Bernoulli(float("nan")), r"p must be in \(0, 1\], got nan"),
    (lambda: Bernoulli([0.5] * 9 + [-0.1]), r"p must be in \(0, 1\], got -0\.1 for client 9"),
    (lambda: Bernoulli([0.5] * 9), r"a table of 10 \(one per client\), got shape \[9\]"),
    (lambda: Bernoulli(0.5, to=1.01), r"p must be in \(0, 1\], got 1\.01 for client 9"),
    (lambda: Bernoulli([0.5] * 10, to=0.9), "leave it out where p is a table"),
    (lambda: Bernoulli("often"), "Bernoulli: p must be numbers"),
    (lambda: Weighted([0.25] * 10), r"sum to 2\.5, but .* must be a whole number; scale them, e\.g\. p \* 2 /"),
    (lambda: Weighted([0.01] * 10), r"sum to 0\.1, but .* p \* 1 /"),
    (lambda: Weighted([0.2] * 9 + [0.2 + 1e-6]), "must be a whole number"),
    (lambda: Weighted([1.5, 0.5] + [0.125] * 8), r"p must be in \(0, 1\], got 1\.5 for client 0"),
    (lambda: Weighted([0.0, 1.0] + [0.125] * 8), "got 0 for client 0"),
    (lambda: Weighted([0.2] * 5), r"a table of 10 numbers .* got shape \[5\]"),
    (lambda: Weighted(0.2), r"a table of 10 numbers .* got shape \[\]"),
    (lambda: Weighted([[0.2], [0.1, 0.3]]), "rows of one length"),
    (lambda: PowerOfChoice(3, 11), "candidates = 11 is more than the number of clients, 10"),
    (lambda: PowerOfChoice(5, 4), "m = 5 is more than the number of candidates, 4"),
    (lambda: PowerOfChoice(0, 4), "m must be at least 1"),
    (lambda: PowerOfChoice(1, 4, prior=0), "prior must be a positive number"),
    (lambda: Cyclic(), "either m or groups"),
    (lambda: Cyclic(2, groups=[[0]]), "either m or groups, and not both"),
    (lambda: Cyclic(11), "m = 11 is more than"),
    (lambda: Cyclic(groups=[list(range(9))]), "client 9 is in none"),
    (lambda: Cyclic(groups=[list(range(9)), [10]]), "no client 10; the clients are 0 to 9"),
    (lambda: Cyclic(groups=[list(range(10)), [4]]), "client 4 is named more than once"),
    (lambda: Cyclic(groups=[[0.5]]), "group 0 must be a list of client numbers"),
    (lambda: Availability(Uniform(11), period=2, duty=0.5), "m = 11 is more than"),
    (lambda: Availability("uniform", period=2, duty=0.5), "inner must be a sampler"),
    (lambda: Availability(Full()), "either period and duty, or a table, or a function"),
    (lambda: Availability(Full(), period=2, duty=0.5, table=[[True] * 10]), "either period and duty, or"),
    (lambda: Availability(Full(), period=2), "period and duty go together"),
    (lambda: Availability(Full(), period=0, duty=0.5), "period must be at least 1"),
    (lambda: Availability(Full(), period=2, duty=0), r"duty must be in \(0, 1\]"),
    (lambda: Availability(Full(), period=2, duty=1.5), r"duty must be in \(0, 1\]"),
    (lambda: Availability(Full(), table=[[True] * 9]), r"shape \[R, N\] with N = 10 clients, got \[1, 9\]"),
    (lambda: Availability(Full(), table=[True] * 10), r"shape \[R, N\] with N = 10 clients, got \[10\]"),
    (lambda: Availability(Full(), table=np.zeros((0, 10), bool)), r"got \[0, 10\]"),
    (lambda: Availability(Full(), table=[[0.5] * 10]), "nothing but True and False"),
    (lambda: Availability(Full(), table=[["yes"] * 10]), "nothing but True and False"),
    (lambda: Availability(Full(), function=3), "function must be callable"),
    (lambda: Replay([[0], [10]]), "cohort of round 1: there is no client 10; the clients are 0 to 9"),
    (lambda: Replay([[-1]]), "there is no client -1"),
    (lambda: Replay([[2, 2]]), "client 2 is named more than once"),
    (lambda: Replay([[0.5]]), "cohort of round 0 must be a list of client numbers"),
    (lambda: Replay([3]), "cohort of round 0 must be a list of client numbers"),
    (lambda: Replay([[0], [1]], [0.5, 0.5]), r"must be one number or 10 \(one per client\), got 2"),
    (lambda: Replay([[0], [1]], [[0.5]]), "2 cohorts but probabilities for 1 rounds"),
    (lambda: Replay([[0], [1, 2]], [[0.5], [0.5] * 3]), r"round 1 must be one number, 10 .* or 2 .* got shape \[3\]"),
    (lambda: Replay([[0], [1]], 0.0), r"in \(0, 1\] .* client 0 in round 0 is not"),
    (lambda: Replay([[0], [1]], [[0.5], [2.0]]), r"in \(0, 1\] .* client 1 in round 1 is not"),
    (lambda: Replay([[0]], ["x"]), "must be numbers"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[f"{k}" for k in range(len(BAD))])
def test_bad_input_is_refused_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message) as caught:
        make().check(10)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


# --- the command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform", Uniform(10)),
        (" uniform ", Uniform(10)),
        ("full", Full()),
        ("bernoulli:0.1", Bernoulli(0.1)),
        ("bernoulli:p=0.1", Bernoulli(0.1)),
        ("bernoulli:0.01,to=0.19", Bernoulli(0.01, to=0.19)),
        ("power-of-choice:20", PowerOfChoice(10, 20)),
        ("power-of-choice:20,prior=3", PowerOfChoice(10, 20, 3.0)),
        ("cyclic", Cyclic(10)),
        ("cyclic:reshuffle=true", Cyclic(10, reshuffle=True)),
        ("availability:period=24,duty=0.5,inner=uniform", Availability(Uniform(10), 24, 0.5)),
        ("availability:inner=bernoulli:0.1, period=24, duty=0.5", Availability(Bernoulli(0.1), 24, 0.5)),
    ],
)
def test_parse(text, expected):
    assert repr(parse_sampler(text, cohort_size=10)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom", "there is no sampler 'unifrom': did you mean 'uniform'"),
        ("", "there is no sampler ''"),
        ("uniform:3", "takes no values, so there is no place for '3' .* --cohort"),
        ("uniform:m=3", "set the size of the cohort with --cohort"),
        ("full:1", "'full' takes no values"),
        ("bernoulli", "'bernoulli' needs p: write bernoulli:p=VALUE"),
        ("bernoulli:", "'bernoulli' needs p"),
        ("bernoulli:x", "p must be a number, got 'x'"),
        ("bernoulli:0.1,0.2,0.3", "takes only p, to, so there is no place for '0.3'"),
        ("bernoulli:0.1,p=0.2", "p is given twice"),
        (
            "power-of-choice:candidate=3",
            "option of the sampler 'power-of-choice' 'candidate': did you mean 'candidates'",
        ),
        ("power-of-choice:2.5", "candidates must be a whole number, got '2.5'"),
        ("cyclic:reshuffle=yes", "reshuffle must be true or false, got 'yes'"),
        ("cyclic:groups=1", "groups of the sampler Cyclic cannot be written on the command line"),
        ("weighted", r"cannot be written on the command line; use Weighted\(p=...\) from Python"),
        ("replay", r"use Replay\(cohorts=...\) from Python"),
        ("availability:period=24,duty=0.5", "'availability' needs inner"),
        ("availability:inner=unifrom,period=24,duty=0.5", "did you mean 'uniform'"),
    ],
)
def test_parse_errors_say_what_to_write(text, message):
    with pytest.raises(UsageError, match=message):
        parse_sampler(text, cohort_size=10)


NEW_SAMPLER = """
from dataclasses import dataclass
import numpy as np
from fedvra.samplers.base import SAMPLERS, Sampler

@dataclass(frozen=True)
class FirstOnes(Sampler):
    m: int
    skip: int = 0
    exact = True

    def draw(self, round, seed, total, losses):
        return np.arange(self.skip, self.skip + self.m)

    def probabilities(self, round, clients, total, history):
        return np.ones(len(clients))

    def check(self, total):
        pass

SAMPLERS.add("first-ones", FirstOnes)
"""


def test_a_file_in_the_folder_is_all_that_a_new_sampler_needs(tmp_path):
    (tmp_path / "first_ones.py").write_text(NEW_SAMPLER)
    code = (
        "import fedvra.samplers as s; "
        f"s.__path__.append({str(tmp_path)!r}); "
        "print(s.parse_sampler('first-ones:2', 4), 'first-ones' in s.SAMPLERS.names())"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "FirstOnes(m=4, skip=2) True"


def test_samplers_are_final_documented_and_known_by_name():
    for kind in (Availability, Bernoulli, Cyclic, Full, PowerOfChoice, Replay, Uniform, Weighted):
        assert kind in dict(SAMPLERS.items()).values()
        assert kind.__bases__ == (Sampler,)
        assert ">>>" in (kind.__doc__ or "")


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(fedvra.samplers.__path__)])
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"fedvra.samplers.{name}")).failed == 0


def test_no_torch_is_needed():
    code = "import sys, fedvra.samplers, fedvra.work; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
