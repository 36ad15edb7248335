"""The order in which a client reads its samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvra.data.batches import batch_schedule
from fedvra.errors import UsageError
from fedvra.streams import Purpose, stream


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
