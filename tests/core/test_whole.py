"""Whole units: exact sums, numbers that are right on average, and duals whose gap is 0 to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedvra as fv
from fedvra.core import rule
from fedvra.core.block import Block, Broadcast, Kept, Orders, Private
from fedvra.core.step import CountedMoves, WholeMoves, client_round, whole_server_dual
from fedvra.core.whole import GRAIN, Counting, OutOfRangeError, Ring, Units, check_range, to_real, to_whole

WIDTHS = [8, 12, 16, 24, 31, 32, 64]


@pytest.mark.parametrize("bits", WIDTHS)
@given(data=st.data())
def test_a_sum_modulo_is_the_sum_in_plain_integers(bits: int, data: st.DataObject) -> None:
    clients, ring = data.draw(st.integers(1, 9)), Ring(bits)
    most = min(ring.room(clients), 1 << 58)
    rows = [data.draw(st.lists(st.integers(-most, most), min_size=3, max_size=3)) for _ in range(clients)]
    total = ring.wrap(torch.zeros(3, dtype=torch.int64))
    for row in rows:
        total = ring.add(total, ring.decode(ring.encode(ring.wrap(torch.tensor(row))), 3))
    assert ring.signed(total).tolist() == [sum(column) for column in zip(*rows, strict=True)]
    assert ring.subtract(total, total).tolist() == [0, 0, 0]


def test_the_room_of_a_sum_is_what_all_together_can_fill() -> None:
    """Worked out by hand: 16 bits hold -32768 to 32767, and ten times 3276 is 32760."""
    assert Ring(16).room(10) == 3276
    assert (Ring(8).room(3), Ring(8).room(127), Ring(8).room(128)) == (42, 1, 0)


@pytest.mark.parametrize("bits", [7, 33, 63])
def test_widths_that_there_are_not(bits: int) -> None:
    with pytest.raises(fv.UsageError, match="bits must be 8 to 32"):
        Ring(bits)


def test_units_are_right_on_average_and_clipped() -> None:
    """The mean of 40,000 roundings of 0.3 units has a deviation of sqrt(0.21/40000) = 0.0023."""
    units = Units(weight=0.5, unit=0.1, most=4)
    counted = units.count(torch.full((40_000,), 0.06), np.random.default_rng(0))
    assert set(counted.tolist()) == {0, 1}
    assert abs(float(counted.double().mean()) - 0.3) < 5 * 0.0023
    assert units.count(torch.tensor([9.0, -9.0]), np.random.default_rng(0)).tolist() == [4, -4]
    assert units.worth(torch.tensor([4, -1]), torch.float64).tolist() == pytest.approx([0.8, -0.2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_what_cannot_be_counted_is_refused(bad: float) -> None:
    with pytest.raises(OutOfRangeError):
        to_whole(torch.tensor([bad]))
    with pytest.raises(OutOfRangeError):
        check_range(torch.tensor([1 << 62]))
    if not np.isfinite(bad):
        with pytest.raises(OutOfRangeError):
            Units(1.0, 1.0, 5).count(torch.tensor([bad]), np.random.default_rng(0))


class OneRow:
    def __init__(self, old: torch.Tensor | None = None) -> None:
        self.row = old

    def old(self, k: int) -> torch.Tensor | None:
        return self.row

    def place(self, k: int) -> torch.Tensor | None:
        return None

    def stage(self, k: int, row: torch.Tensor) -> None:
        self.row = row


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_the_gap_is_exactly_zero_whatever_the_weights(sigma: float) -> None:
    """Twenty rounds of random moves in float32 by random cohorts; beside it the rule in float64, within the units' size."""
    rng, clients, size, grains = np.random.default_rng(1), 5, 6, 12345
    omega = rng.dirichlet(np.ones(clients))
    held = torch.zeros(clients, size, dtype=torch.int64)
    whole, lam = torch.zeros(size, dtype=torch.int64), torch.zeros(size)
    textbook_i, textbook = np.zeros((clients, size)), np.zeros(size)
    alpha, most = 3.0, 4000
    for number in range(20):
        cohort = np.sort(rng.choice(clients, 3, replace=False))
        counted_sum, moved = torch.zeros(size, dtype=torch.int64), {}
        for i in cohort.tolist():
            move = torch.tensor(rng.normal(size=(1, size)) * 1e-6, dtype=torch.float32)
            units = Units(float(omega[i]) * alpha, grains * GRAIN, most)
            counting = Counting(float(omega[i]), units, grains, held[i])
            block = Block(number, 0, np.array([i]), np.array([1]), np.array([0.1]))
            orders = Orders(block, np.zeros(1), np.array([alpha]), sigma, counting=counting)
            row = OneRow()
            moves = client_round(
                lambda terms, private, block, move=move: WholeMoves(terms, move, np.zeros(1)),
                Broadcast(torch.zeros(size), lam),
                orders,
                Kept(duals=row),
                Private(),
            )
            assert isinstance(moves, CountedMoves)
            counted_sum += moves.counted
            assert row.row is not None
            moved[i] = row.row
            textbook_i[i] += -sigma * textbook - alpha * move[0].double().numpy()
        told = lam
        for i, new in moved.items():
            held[i] = new
        whole = whole_server_dual(whole, told, omega[cohort], sigma, grains, counted_sum)
        lam = to_real(whole, torch.float32)
        textbook = omega @ textbook_i
        assert torch.equal(whole, held.sum(0))
    assert float(lam.abs().max()) > 0
    np.testing.assert_allclose(lam, textbook, atol=20 * 3 * grains * GRAIN)


def test_the_dual_step_is_linear_so_that_clients_and_server_take_the_same() -> None:
    held, taken, counted = (torch.tensor(v) for v in ([[5, 9], [1, -4]], [[1, 1], [2, 0]], [[3, -2], [0, 7]]))
    each = torch.stack([rule.whole_dual_step(h, t, 10, q) for h, t, q in zip(held, taken, counted, strict=True)])
    assert each.tolist() == [[-26, 28], [-1, -74]]
    assert torch.equal(each.sum(0), rule.whole_dual_step(held.sum(0), taken.sum(0), 10, counted.sum(0)))
