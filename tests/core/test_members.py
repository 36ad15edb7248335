"""Members come and go: the numbers they have, and the equation that keeps lam the weighted mean of their duals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvra.core import rule
from fedvra.core.errors import UsageError
from fedvra.core.members import Members


def test_numbers_are_given_once() -> None:
    members = Members.founders(2, numbers=4).join(2, round=7).leave(0, round=9)
    assert members.numbers.tolist() == [1, 2]
    assert members.joined.tolist() == [0, 0, 7, -1]
    assert members.left.tolist() == [9, -1, -1, -1]
    assert not members.everybody
    assert Members.founders(3).everybody
    assert members.with_room(6).numbers.tolist() == [1, 2]
    for wrong in (lambda: members.join(0, 10), lambda: members.join(1, 10), lambda: members.leave(0, 10)):
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(UsageError, match="the last one"):
        members.leave(1, 10).leave(2, 11)
    with pytest.raises(UsageError, match="4 client numbers already"):
        members.with_room(3)


def test_by_hand() -> None:
    """Duals 6, 2, 1 under n = 1, 2, 3: lam = (6 + 4 + 3)/6."""
    lam = torch.tensor([13 / 6], dtype=torch.float64)
    joined = rule.reweighed_dual(lam, None, weight=6, change=2)  # omega_new = 1/4
    assert float(joined) == pytest.approx(3 / 4 * 13 / 6)
    left = rule.reweighed_dual(lam, torch.tensor([6.0], dtype=torch.float64), weight=6, change=-1)  # omega = 1/6
    assert float(left) == pytest.approx((13 / 6 - 6 / 6) / (1 - 1 / 6))
    assert float(left) == pytest.approx((4 + 3) / 5)
    grown = rule.reweighed_dual(lam, torch.tensor([2.0], dtype=torch.float64), weight=6, change=4)  # n_1: 2 -> 6
    assert float(grown) == pytest.approx((6 * 13 / 6 + 4 * 2) / 10)
    assert float(grown) == pytest.approx((6 + 12 + 3) / 10)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    changes=st.lists(st.tuples(st.sampled_from(["join", "leave", "grow"]), st.integers(0, 9), st.integers(1, 50)), max_size=30),
    equal=st.booleans(),
)  # fmt: skip
def test_any_sequence_keeps_lam_the_weighted_mean(changes: list[tuple[str, int, int]], equal: bool) -> None:
    """Against the mean worked out anew from all duals each time."""
    rng = np.random.default_rng(0)
    n, duals = np.zeros(10), rng.normal(size=(10, 4))
    n[:4] = rng.integers(1, 50, 4)
    duals[4:] = 0

    def weights() -> np.ndarray:
        return (n > 0).astype(float) if equal else n

    lam = torch.tensor(weights() @ duals / weights().sum())
    for what, i, size in changes:
        before = weights().copy()
        if what == "join" and not n[i]:
            n[i], dual = size, None
        elif what == "leave" and n[i] and (n > 0).sum() > 1:
            n[i], dual = 0, torch.tensor(duals[i])
        elif what == "grow" and n[i]:
            n[i], dual = size, torch.tensor(duals[i])
        else:
            continue
        lam = rule.reweighed_dual(lam, dual, before.sum(), (weights() - before)[i])
        if what == "join":
            duals[i] = 0
        assert np.abs(lam.numpy() - weights() @ duals / weights().sum()).max() < 1e-12
        if what == "join":  # it takes part; lam moves by its share
            step = rng.normal(size=4)
            duals[i] += step
            lam = lam + weights()[i] / weights().sum() * torch.tensor(step)
