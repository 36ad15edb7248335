"""The order in which a client reads its samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedvra as fv
from fedvra.core.block import Block
from fedvra.core.errors import UsageError
from fedvra.core.streams import Purpose, stream
from fedvra.data.batches import batch_schedule
from token_samples import AGE, LABELS, feed


@settings(max_examples=200)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 30), st.integers(0, 1000))
def test_every_epoch_is_a_permutation_cut_into_batches(samples: int, size: int, steps: int, seed: int) -> None:
    schedule = batch_schedule(samples, size, steps, np.random.default_rng(seed))
    assert len(schedule) == steps
    per_epoch = -(-samples // size)
    full, last = min(size, samples), samples - (per_epoch - 1) * size
    for step, batch in enumerate(schedule):
        assert len(batch) == (last if step % per_epoch == per_epoch - 1 else full)
    for start in range(0, steps, per_epoch):
        epoch = np.concatenate(schedule[start : start + per_epoch])
        assert len(set(epoch.tolist())) == len(epoch)
        assert epoch.min() >= 0
        assert epoch.max() < samples
        if start + per_epoch <= steps:
            assert len(epoch) == samples


def test_epochs_are_shuffled_afresh() -> None:
    schedule = batch_schedule(100, 100, 3, np.random.default_rng(0))
    assert (schedule[0] != schedule[1]).any()
    assert (schedule[1] != schedule[2]).any()


def test_more_steps_continue_the_same_schedule() -> None:
    def schedule(steps: int) -> list[np.ndarray]:
        return batch_schedule(10, 4, steps, stream(0, Purpose.BATCHES, round=2, client=5))

    for short, long in zip(schedule(4), schedule(9), strict=False):
        np.testing.assert_array_equal(short, long)


def test_the_full_batch_is_every_sample_in_order_and_draws_nothing() -> None:
    rng = np.random.default_rng(0)
    for batch in batch_schedule(5, None, 3, rng):
        np.testing.assert_array_equal(batch, np.arange(5))
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(("samples", "size", "steps"), [(0, 5, 1), (5, 0, 1), (5, 5, -1), (0, None, 1)])
def test_nonsense_is_refused(samples: int, size: int | None, steps: int) -> None:
    with pytest.raises(UsageError):
        batch_schedule(samples, size, steps, np.random.default_rng(0))


@settings(max_examples=200, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 30), st.integers(0, 1000))
def test_a_dropped_last_batch_leaves_the_others_as_they_are(samples: int, size: int, steps: int, seed: int) -> None:
    kept = batch_schedule(samples, size, steps, np.random.default_rng(seed), drop_last=True)
    assert [len(batch) for batch in kept] == [min(size, samples)] * steps
    usual = batch_schedule(samples, size, 2 * steps, np.random.default_rng(seed))
    full = [batch for batch in usual if len(batch) == min(size, samples)]
    for left, right in zip(kept, full, strict=False):
        np.testing.assert_array_equal(left, right)


def test_the_feed_drops_the_last_batch_of_an_epoch_where_asked() -> None:
    data = fv.split((AGE, LABELS), fv.ByColumn([0] * 10 + [1] * 2))
    block = Block(0, 0, np.array([0, 1]), np.array([6, 6]), np.ones(2))
    usual, dropping = feed(data), feed(data, drop_last=True)
    assert [len(rows) for rows in usual.schedule(block, 0, 6)] == [4, 4, 2, 4, 4, 2]
    schedule = dropping.schedule(block, 0, 6)
    assert [len(rows) for rows in schedule] == [4] * 6
    for kept, full in zip(
        schedule[:2] + schedule[2:4], np.array(usual.schedule(block, 0, 6), object)[[0, 1, 3, 4]], strict=True
    ):
        np.testing.assert_array_equal(kept, full)
    assert [len(rows) for rows in dropping.schedule(block, 1, 2)] == [2, 2], "all it has, in one batch"
