"""Work: the true number of local steps of every client in every round."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedvra.core.validation
import fedvra.samplers.work
from fedvra.core.errors import UsageError
from fedvra.data.batches import batch_schedule
from fedvra.samplers.work import Epochs, RandomEpochs, Speeds, Steps, Work, parse_epochs

N = 10
SAMPLES = np.array([1, 49, 50, 51, 100, 101, 600, 7, 250, 0])


def steps(work: Work, clients=range(N), round=0, batch_size=50, seed=0, **more):
    clients = np.array(clients, dtype=np.int64)
    result = work.steps(round, clients, SAMPLES[clients], batch_size, seed, **more)
    assert result.dtype == np.int64
    assert result.shape == clients.shape
    assert (result >= 0).all()
    return result.tolist()


def test_steps_of_one_number_or_of_a_table():
    assert steps(Steps(3), [2, 5]) == [3, 3]
    assert steps(Steps(0), [2, 5]) == [0, 0]
    assert steps(Steps(range(N)), [2, 5], round=99) == [2, 5]
    table = np.arange(2 * N).reshape(2, N)
    assert steps(Steps(table), [2, 5], round=0) == [2, 5]
    assert steps(Steps(table), [2, 5], round=1) == [12, 15]
    assert steps(Steps(table.astype(float)), [2, 5], round=1) == [12, 15]
    assert steps(Steps(table), []) == []


@pytest.mark.parametrize("round", [2, 99, -1])
def test_a_table_that_is_too_short_says_so_at_that_round(round):
    work = Steps(np.ones((2, N), dtype=int))
    work.check(N)
    with pytest.raises(UsageError, match=f"the table has 2 rounds and round {round} was asked for"):
        steps(work, round=round)


def test_epochs_count_the_last_smaller_batch():
    assert steps(Epochs(1)) == [1, 1, 1, 2, 2, 3, 12, 1, 5, 0]
    assert steps(Epochs(2)) == [2, 2, 2, 4, 4, 6, 24, 2, 10, 0]
    assert steps(Epochs(3), batch_size=None) == [3] * N
    assert steps(Epochs(2), []) == []
    with pytest.raises(UsageError, match="batch size must be at least 1, got 0"):
        steps(Epochs(1), batch_size=0)


def test_epochs_that_drop_the_last_batch_keep_the_only_one():
    assert steps(Epochs(1), drop_last=True) == [1, 1, 1, 1, 2, 2, 12, 1, 5, 0]
    assert steps(Epochs(3), drop_last=True) == [3, 3, 3, 3, 6, 6, 36, 3, 15, 0]
    assert steps(Epochs(3), batch_size=None, drop_last=True) == [3] * N
    assert steps(Steps(7), drop_last=True) == [7] * N
    assert steps(Speeds([2] * N, Epochs(1)), range(9), drop_last=True) == [2, 2, 2, 2, 4, 4, 24, 2, 10]
    epochs, q = (
        np.array(steps(RandomEpochs(1, 50), batch_size=None)),
        np.array(steps(RandomEpochs(1, 50), drop_last=True)),
    )
    np.testing.assert_array_equal(q, epochs * steps(Epochs(1), drop_last=True))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 10_000), st.integers(1, 200), st.booleans())
def test_an_epoch_has_as_many_steps_as_its_schedule_has_batches(samples, batch_size, drop_last):
    (q,) = Epochs(1).steps(0, np.array([0]), np.array([samples]), batch_size, 0, drop_last)
    batches = batch_schedule(samples, batch_size, q + 1, np.random.default_rng(0), drop_last)
    once, again = np.concatenate(batches[:q]), batches[q]
    assert (
        len(set(once.tolist())) == len(once) == (samples if not drop_last or samples < batch_size else q * batch_size)
    )
    assert len(again) == min(samples, batch_size), "a new epoch starts"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(0, 10_000), st.integers(1, 200))
def test_epochs_cover_every_sample_with_no_batch_to_spare(count, samples, batch_size):
    (q,) = Epochs(count).steps(0, np.array([0]), np.array([samples]), batch_size, 0)
    per_epoch = q // count
    assert q == count * per_epoch
    assert per_epoch * batch_size >= samples > (per_epoch - 1) * batch_size


def test_random_epochs_are_uniform_whole_numbers_from_low_to_high():
    rounds = 600
    work = RandomEpochs(1, 5)
    drawn = np.array([steps(work, batch_size=None, round=r) for r in range(rounds)])
    assert set(drawn.ravel().tolist()) == {1, 2, 3, 4, 5}
    draws = drawn.size
    sigma = np.sqrt(draws * 0.2 * 0.8)
    assert (np.abs(np.bincount(drawn.ravel())[1:] - draws / 5) < 5 * sigma).all()
    off_diagonal = np.corrcoef(drawn.T)[~np.eye(N, dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(rounds), "clients draw independently"
    assert steps(RandomEpochs(3, 3), batch_size=None) == [3] * N


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, N - 1), unique=True), st.integers(0, 10**9), st.integers(0, 2**63))
def test_random_epochs_of_a_client_do_not_depend_on_who_else_takes_part(clients, round, seed):
    work = RandomEpochs(1, 50)
    together = steps(work, range(N), round=round, seed=seed)
    assert steps(work, clients, round=round, seed=seed) == [together[i] for i in clients]


def test_random_epochs_differ_by_round_and_seed_and_multiply_whole_epochs():
    work = RandomEpochs(1, 50)
    assert steps(work) != steps(work, round=1) != steps(work, seed=1) != steps(work)
    epochs, q = np.array(steps(work, batch_size=None)), np.array(steps(work))
    np.testing.assert_array_equal(q, epochs * steps(Epochs(1)))


def test_speeds_scale_and_never_stop_anyone():
    factors = [0.01, 0.5, 1, 2, 0.3, 1, 1, 1, 1, 1]
    work = Speeds(factors, base=Steps(10))
    work.check(N)
    assert steps(work) == [1, 5, 10, 20, 3, 10, 10, 10, 10, 10]
    assert steps(work, [3, 0]) == [20, 1]
    assert steps(Speeds([0.5] * N, Epochs(2)), [6, 0]) == [12, 1]
    assert steps(Speeds([0.25] * N, Steps(10)), [0]) == [2], "halves go to the even neighbour"
    assert steps(Speeds([1] * N, RandomEpochs(1, 50)), range(9)) == steps(RandomEpochs(1, 50), range(9))
    assert steps(Speeds(factors, base=Speeds([2] * N, Steps(3)))) == [1, 3, 6, 12, 2, 6, 6, 6, 6, 6]


BAD = [
    (lambda: Steps(-1), "whole numbers, at least 0, got -1"),
    (lambda: Steps(2.5), "whole numbers, at least 0, got 2.5"),
    (lambda: Steps(float("nan")), "whole numbers, at least 0, got nan"),
    (lambda: Steps(float("inf")), "whole numbers, at least 0, got inf"),
    (lambda: Steps("three"), "whole numbers, got 'three'"),
    (lambda: Steps(None), "whole numbers, got None"),
    (lambda: Steps([1] * 9 + [-4]), "whole numbers, at least 0, got -4"),
    (lambda: Steps([[1] * 9 + [0.5]]), "whole numbers, at least 0, got 0.5"),
    (lambda: Steps([1] * 9), r"N = 10 clients, got shape \[9\]"),
    (lambda: Steps(np.ones((10, 9))), r"N = 10 clients, got shape \[10, 9\]"),
    (lambda: Steps(np.ones((1, 1, 10))), r"got shape \[1, 1, 10\]"),
    (lambda: Steps([[1] * 10, [1] * 9]), "rows of one length"),
    (lambda: Epochs(0), "number of epochs must be at least 1, got 0"),
    (lambda: Epochs(1.5), "number of epochs must be a whole number, got 1.5"),
    (lambda: RandomEpochs(0, 5), "low must be at least 1, got 0"),
    (lambda: RandomEpochs(5, 1), "low must be at most high, got low = 5 and high = 1"),
    (lambda: RandomEpochs(1, 2.5), "high must be a whole number, got 2.5"),
    (lambda: Speeds([1.0] * 9, Steps(1)), r"a table of 10 numbers .* got shape \[9\]"),
    (lambda: Speeds([1.0] * 9 + [0.0], Steps(1)), "factors must be positive"),
    (lambda: Speeds([1.0] * 9 + [float("nan")], Steps(1)), "factors must be positive"),
    (lambda: Speeds([1.0] * 9 + [float("inf")], Steps(1)), "factors must be positive, finite"),
    (lambda: Speeds(["fast"] * 10, Steps(1)), "factors must be positive"),
    (lambda: Speeds([1.0] * 10, Steps(-1)), "at least 0, got -1"),
    (lambda: Speeds([1.0] * 10, 3), "base must be Steps, Epochs or other work, got 3"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[f"{k}" for k in range(len(BAD))])
def test_bad_input_is_refused_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message) as caught:
        make().check(N)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "work",
    [Steps(0), Steps([1] * N), Steps(np.ones((3, N), int)), Epochs(1), RandomEpochs(1, 1), Speeds([2] * N, Epochs(1))],
    ids=lambda work: type(work).__name__,
)
def test_good_input_is_accepted(work):
    work.check(N)


def test_a_table_does_not_change_when_the_caller_s_does():
    table = np.ones((1, N), dtype=int)
    work = Steps(table)
    table[:] = 7
    assert steps(work) == [1] * N


@pytest.mark.parametrize(
    ("text", "expected"), [("2", Epochs(2)), ("1-5", RandomEpochs(1, 5)), (" 3 - 3 ", RandomEpochs(3, 3))]
)
def test_parse_epochs(text, expected):
    assert parse_epochs(text) == expected


@pytest.mark.parametrize("text", ["", "two", "1.5", "-1", "1-", "-5", "1-2-3", "1..5", "\u0662"])
def test_parse_epochs_says_what_to_write(text):
    with pytest.raises(UsageError, match="a whole number such as 2, or a range such as 1-5, got"):
        parse_epochs(text)


@pytest.mark.parametrize(
    ("text", "message"), [("0", "at least 1, got 0"), ("0-3", "at least 1"), ("5-1", "at most high")]
)
def test_parse_epochs_judges_the_numbers(text, message):
    with pytest.raises(UsageError, match=message):
        parse_epochs(text)


@pytest.mark.parametrize("module", [fedvra.samplers.work, fedvra.core.validation], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
