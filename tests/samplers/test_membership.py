"""Samplers where some client numbers belong to nobody."""

from __future__ import annotations

import numpy as np
import pytest

from fedvra.core.errors import UsageError
from fedvra.core.members import Members
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
    among,
)
from sampling import GROUPS, UNEQUAL, N, assert_within_five_sigma, counts, draws, no_losses, some_losses

SOME = Members.founders(N - 2, numbers=N).join(N - 1, round=3).leave(0, round=4).leave(6, round=5)
"""Of 12 numbers 0 and 6 have left, 10 is free, 11 joined late: nine are there."""


@pytest.mark.parametrize(
    "sampler",
    [
        Full(),
        Uniform(4),
        Bernoulli(0.3),
        Bernoulli(UNEQUAL),
        Bernoulli(0.1, to=0.9),
        Weighted(UNEQUAL),
        Cyclic(3, reshuffle=True),
        Cyclic(groups=GROUPS, reshuffle=True),
        Availability(Uniform(5), table=np.ones((2, N), dtype=bool)),
    ],
    ids=repr,
)
def test_only_members_are_drawn_as_often_as_is_said(sampler: Sampler) -> None:
    rounds, there = 3000, among(sampler, SOME)
    there.check(N)
    found = counts(draws(there, rounds))
    assert (found[~SOME.present] == 0).all()
    p = there.probabilities(0, SOME.numbers, N, Participation(0, np.zeros(N, dtype=np.int64), SOME.joined))
    assert_within_five_sigma(found[SOME.present], rounds, p)
    assert there.exact == sampler.exact


def test_a_cohort_has_its_size_among_those_who_are_there() -> None:
    there = among(Uniform(9), SOME)
    assert there.draw(0, 0, N, no_losses).tolist() == SOME.numbers.tolist()
    with pytest.raises(UsageError, match="m = 10 is more than the number of clients, 9"):
        among(Uniform(10), SOME).check(N)


def test_everybody_is_the_sampler_itself() -> None:
    sampler = Uniform(3)
    assert among(sampler, Members.founders(N)) is sampler


def test_tables_go_by_number() -> None:
    replay = among(Replay([[0, 1, 11]], probabilities=UNEQUAL), SOME)
    assert replay.draw(0, 0, N, no_losses).tolist() == [1, 11]
    assert replay.probabilities(0, np.array([1, 11]), N, Participation.none(N)).tolist() == UNEQUAL[[1, 11]].tolist()


def test_losses_are_asked_of_members_and_chances_counted_since_they_joined() -> None:
    asked: list[int] = []

    def losses(clients: np.ndarray) -> np.ndarray:
        asked.extend(clients.tolist())
        return some_losses(clients)

    there = among(PowerOfChoice(2, candidates=9), SOME)
    drawn = there.draw(0, 0, N, losses)
    assert sorted(asked) == SOME.numbers.tolist()
    expected = SOME.numbers[np.argsort(-some_losses(SOME.numbers))[:2]]
    assert drawn.tolist() == sorted(expected.tolist())
    counted = np.where(np.arange(N) == 11, 1, 3)
    history = Participation(13, counted, SOME.joined)
    p = there.probabilities(13, np.array([1, 11]), N, history)
    np.testing.assert_allclose(p, [(3 + 1) / (13 + 9 / 2), (1 + 1) / (10 + 9 / 2)])
