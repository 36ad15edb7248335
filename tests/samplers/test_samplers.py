"""Samplers: who is drawn, that it depends on (seed, round) alone, and what they cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvra.core.errors import UsageError
from fedvra.samplers import (
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
)
from sampling import GROUPS, UNEQUAL, N, assert_within_five_sigma, counts, draws, no_losses, some_losses, stated

# --- what holds for all ----------------------------------------------------------------------------------------------


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
