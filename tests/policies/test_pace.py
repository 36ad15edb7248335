"""How auto's strength follows what the server sees: each line of the table in docs/adaptive.md."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedvra.core.adaptive import Seen, look
from fedvra.policies import Pace


def seen(move: float = 1.0, cosine: float | None = 0.0, dual: float = 1.0, loss: float = 1.0) -> Seen:
    return Seen(move, None if cosine is None else 1.0, None if cosine is None else cosine * math.sqrt(move), dual, loss)


def play(*rounds: Seen, p: float = 0.1) -> list[Pace]:
    paces = [Pace.first(p)]
    for each in rounds:
        paces.append(paces[-1].after(p, 1.0, each))
    return paces


def changes(paces: list[Pace]) -> list[float]:
    return [math.log(b.sigma / a.sigma) for a, b in itertools.pairwise(paces)]


def test_full_strength_after_the_first_round() -> None:
    assert [pace.sigma for pace in play(seen(cosine=None), seen())] == pytest.approx([2, 3, 3])


def test_strength_grows_with_progress_up_to_a_bound() -> None:
    down = [seen(cosine=-1.0, move=0.8**r, dual=0.5**r) for r in range(6)]
    paces = play(*down, *(seen(cosine=1.0, move=0.8**r, dual=0.5**r) for r in range(6, 20)))
    assert paces[6].sigma < 2.5
    assert max(changes(paces)[6:]) == pytest.approx(0.1)
    assert paces[-1].sigma == paces[0].most == 3.0


def test_strength_is_cut_when_uploads_grow() -> None:
    assert changes(play(seen(), seen(move=100.0)))[1] == pytest.approx(-0.5)
    back = changes(play(seen(), seen(move=100.0), seen(move=9.0), seen(move=5.0)))
    assert back[1:] == pytest.approx(
        [-0.5, 0, 0]
    )  # once is enough where it helped: the mean is still high, the news is good
    last = play(*(seen(move=10.0**r) for r in range(99)))[-1]
    assert last.sigma == pytest.approx(0.1)  # kappa = T: the server moves along lam as far as a client does in a round


@pytest.mark.parametrize(("p", "bound"), [(1.0, 1.25), (0.5, 1.5), (0.1, 3.5)])
def test_strength_is_cut_while_the_dual_grows_beyond_a_bound_that_depends_on_who_takes_part(
    p: float, bound: float
) -> None:
    def by(*duals: float) -> list[float]:
        heard = [1 - (1 - p) ** (r + 1) for r in range(len(duals))]
        news = [
            seen(move=1 + 0.01 * r, dual=(h * dual) ** 2) for r, (h, dual) in enumerate(zip(heard, duals, strict=True))
        ]
        return changes(play(*news, p=p))

    assert by(1, 0.99 * bound)[-1] == pytest.approx(-0.06)  # noise, as far as one can tell
    assert by(1, 1.01 * bound, 1.02 * bound)[1:] == pytest.approx([-0.5, -0.5])
    assert by(1, 1.02 * bound, 1.01 * bound)[1:] == pytest.approx([-0.5, 0])  # it falls again: that was enough


def test_growth_in_vain_is_cut_earlier() -> None:
    """Where the training loss does not fall, uploads need not double first."""
    grown = [seen(), seen(move=1.5), seen(move=3.0)]  # the root of the mean is then 1.07 and 1.32

    def last_change(*losses: float) -> float:
        return changes(play(*(replace(each, loss=loss) for each, loss in zip(grown, losses, strict=True))))[-1]

    assert last_change(2.0, 1.5, 1.0) > -0.1
    assert last_change(2.0, 1.5, 2.0) == pytest.approx(-0.5)
    assert (
        last_change(2.0, 1.0, 1.52) > -0.1
    )  # its mean: 2, 1.5, 1.51, above its lowest by less than an eighth of the range
    assert last_change(-8.0, -8.5, -8.0) == pytest.approx(-0.5)  # neither the sign of a loss nor its unit matters
    assert last_change(2.0, math.inf, math.nan) > -0.1  # no news is no bad news


def test_strength_is_cut_when_uploads_come_back_larger() -> None:
    """Along a direction multiplied by -q, 1 + q is proportional to sigma: afterwards q would be a half."""
    for q in (1.1, 2.0, 8.0):
        back = Seen(q**2, 1.0, -q, 1.0, 1.0)
        assert back.back == pytest.approx(q)
        assert changes(play(seen(), back))[1] == pytest.approx(math.log(1.5 / (1 + q)))
    assert changes(play(seen(), Seen(0.9**2, 1.0, -0.9, 1.0, 1.0)))[1] > -0.03
    backs = [
        Seen(move, last, product, 1.0, 1.0).back for move, last, product in ((1, None, None), (1, 0, 0), (4, 1, 2))
    ]
    assert backs == [0, 0, -2]


def test_duals_are_slowed_where_noise_keeps_the_strength_down_and_not_where_swings_do() -> None:
    made = {share: Pace(3 * share, 3.0).visits for share in (1.0, 0.75, 0.5, 0.3, 0.2, 0.1, 0.01)}
    assert [made[s] for s in (1.0, 0.75, 0.1, 0.01)] == [1, 1, 1, 1]
    assert made[0.5] * 0.5 == pytest.approx(0.75) == made[0.3] * 0.3  # the server's step is kept
    assert made[0.2] == pytest.approx(1.8)


def test_strength_is_eased_while_uploads_undo_each_other() -> None:
    assert changes(play(*[seen(cosine=-1.0, move=0.9**r, dual=0.1**r) for r in range(6)]))[-1] < -0.1


def test_strength_falls_slowly_at_the_level_of_the_noise() -> None:
    level = [
        seen(move=move, dual=dual) for move, dual in ((1.0, 0.01), (1.1, 0.036), (1.1, 0.08))
    ]  # |lam| / heard: 1, 1, 1.04
    assert changes(play(*level))[-1] == pytest.approx(-0.06)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
def test_noise_alone_lowers_the_strength_only_as_far_as_slower_duals_make_up_for_it(p: float) -> None:
    heard = [1 - (1 - p) ** (r + 1) for r in range(500)]
    level = [seen(move=1.1, dual=1.1 * h**2) for h in heard[1:]]
    last = play(seen(dual=heard[0] ** 2), *level, p=p)[-1]
    assert last.sigma == pytest.approx(last.resting)
    near = [replace(last, sigma=share * last.sigma).visits for share in (0.9, 1.0, 1.1)]
    assert near[0] < near[1] > near[2]
    below = replace(last, sigma=0.7 * last.sigma)  # a cut led here: the rest neither lowers nor raises it
    assert below.after(p, 1.0, level[-1]).sigma == pytest.approx(below.sigma)


def test_fewer_clients_per_round_start_more_carefully() -> None:
    starts = [Pace.first(p).sigma for p in (0.001, 0.02, 0.05, 0.1, 1.0)]
    np.testing.assert_allclose(starts, [0.001, 0.12, 0.75, 2, 2])
    np.testing.assert_allclose([Pace.first(p).most for p in (0.001, 0.02, 0.05, 0.1, 1.0)], [0.001, 0.12, 0.75, 3, 3])


def test_scalars_do_not_overflow() -> None:
    big = torch.full((3,), 1e30)
    found = look(big, -big, big, 1.0)
    assert found.cosine == pytest.approx(-1)
    assert look(big * 0, big, big, 1.0).cosine is None
    assert Pace.first(0.1).after(0.1, 1.0, Seen(*[math.inf] * 5)).sigma > 0
