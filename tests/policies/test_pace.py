"""How auto's strength follows what the server sees: each line of the table in docs/adaptive-how.md."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvra.core.adaptive import Seen, look
from fedvra.core.errors import UsageError
from fedvra.policies import Auto, Pace, parse_setting
from fedvra.policies.pace_rules import REASONS, RULES

AUTO = Auto()
PAGE = (Path(__file__).parents[2] / "docs/adaptive-how.md").read_text(encoding="utf-8")
LEVEL = {"move": 1.1, "dual": 1.0}
"""Uploads a little above the first ones: a round in which nothing happens."""


def seen(move: float = 1.0, cosine: float | None = 0.0, dual: float = 1.0, loss: float = 1.0) -> Seen:
    return Seen(move, None if cosine is None else 1.0, None if cosine is None else cosine * math.sqrt(move), dual, loss)


def play(*rounds: Seen, p: float = 0.1, auto: Auto = AUTO) -> list[Pace]:
    paces = [Pace.first(auto, p)]
    for each in rounds:
        paces.append(paces[-1].after(auto, p, 1.0, each))
    return paces


def changes(paces: list[Pace]) -> list[float]:
    return [math.log(b.sigma / a.sigma) for a, b in itertools.pairwise(paces)]


def test_strength_is_earned_by_shrinking_uploads_up_to_a_bound() -> None:
    paces = play(*(seen(move=0.8**r) for r in range(12)))
    assert paces[0].sigma == 1
    assert changes(paces)[:6] == pytest.approx([0.1] * 6)
    assert paces[-1].sigma == paces[0].most == 2
    assert {pace.reason for pace in paces} == {"start", "uploads are the smallest so far"}


def test_a_round_in_which_nothing_happens_changes_nothing() -> None:
    paces = play(seen(), *(seen(**LEVEL) for _ in range(50)))
    assert changes(paces)[1:] == pytest.approx([0] * 50, abs=1e-12)
    assert paces[-1].reason == "steady"


def test_strength_is_cut_when_uploads_grow() -> None:
    paces = play(seen(), seen(move=100.0), seen(move=9.0), seen(move=5.0))
    assert changes(paces)[1:] == pytest.approx([-0.5, 0, 0])  # once is enough where it helped
    assert [pace.reason for pace in paces[2:]] == ["uploads grew"] * 3
    last = play(*(seen(move=10.0**r) for r in range(99)))[-1]
    assert last.sigma == pytest.approx(0.1)  # p: the server moves along lam at least as far as a client does in a round
    assert play(*(seen(move=10.0**r) for r in range(99)), p=1.0)[-1].sigma == AUTO.lowest


def test_where_it_had_to_cut_is_remembered() -> None:
    """After a cut from s to t sigma grows back to the root of s*t and no farther."""
    grown = play(seen(), seen(move=100.0), *(seen(move=0.5 * 0.5**r) for r in range(40)))
    before, after = grown[1].sigma, grown[2].sigma
    assert grown[-1].sigma == pytest.approx(math.sqrt(before * after))
    assert grown[-1].most < grown[0].most


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

    assert by(1, 0.99 * bound)[-1] == 0  # noise, as far as one can tell
    assert by(1, 1.01 * bound, 1.02 * bound)[1:] == pytest.approx([-0.5, -0.5])
    assert by(1, 1.02 * bound, 1.01 * bound)[1:] == pytest.approx([-0.5, 0])  # it falls again: that was enough


def test_growth_in_vain_is_cut_earlier() -> None:
    """Where the training loss does not fall, uploads need not double first."""
    grown = [seen(), seen(move=1.5), seen(move=3.0)]  # the root of the mean is then 1.07 and 1.32

    def last_change(*losses: float) -> float:
        return changes(play(*(replace(each, loss=loss) for each, loss in zip(grown, losses, strict=True))))[-1]

    assert last_change(2.0, 1.5, 1.0) == 0
    assert last_change(2.0, 1.5, 2.0) == pytest.approx(-0.5)
    assert (
        last_change(2.0, 1.0, 1.52) == 0
    )  # its mean: 2, 1.5, 1.51, above its lowest by less than an eighth of the range
    assert last_change(-8.0, -8.5, -8.0) == pytest.approx(-0.5)  # neither the sign of a loss nor its unit matters
    assert last_change(2.0, math.inf, math.nan) == 0  # no news is no bad news


def test_strength_is_cut_when_uploads_come_back_larger() -> None:
    """Along a direction multiplied by -q, 1 + q is proportional to sigma: afterwards q would be a half."""
    for q in (1.1, 2.0, 8.0):
        back = Seen(q**2, 1.0, -q, 1.0, 1.0)
        assert back.back == pytest.approx(q)
        paces = play(seen(), back)
        assert changes(paces)[1] == pytest.approx(math.log(1.5 / (1 + q)))
        assert paces[-1].reason == "uploads came back larger"
    assert changes(play(seen(), Seen(1.05**2, 1.0, -0.99, 1.0, 1.0)))[1] == 0
    backs = [
        Seen(move, last, product, 1.0, 1.0).back for move, last, product in ((1, None, None), (1, 0, 0), (4, 1, 2))
    ]
    assert backs == [0, 0, -2]


def test_the_step_along_lam_is_kept_while_sigma_changes() -> None:
    for sigma, n in ((2.0, 1), (1.0, 2), (0.8, 2.5), (2 / 3, 3), (0.1, 3)):
        assert Pace(sigma, 2.0).visits(AUTO, 0.1) == pytest.approx(n)
    assert (
        Pace(0.75, 0.75).visits(AUTO, 0.05) == 1
    )  # 5 of 100: duals are out of date, and sigma*n is bounded by 300*p^2


def test_fewer_clients_per_round_start_more_carefully() -> None:
    starts = [Pace.first(AUTO, p).sigma for p in (0.001, 0.02, 0.05, 0.1, 1.0)]
    np.testing.assert_allclose(starts, [0.001, 0.12, 0.75, 1, 1])
    np.testing.assert_allclose(
        [Pace.first(AUTO, p).most for p in (0.001, 0.02, 0.05, 0.1, 1.0)], [0.001, 0.12, 0.75, 2, 2]
    )


def test_scalars_do_not_overflow() -> None:
    big = torch.full((3,), 1e30)
    assert look(big, -big, big, 1.0).back == pytest.approx(1)
    assert Pace.first(AUTO, 0.1).after(AUTO, 0.1, 1.0, Seen(*[math.inf] * 5)).sigma > 0


# -- the constants ------------------------------------------------------------------------------------------------------


def test_every_constant_counts() -> None:
    """Each changes some course of events: a field that did nothing would be a promise that is not kept."""
    news = [
        seen(),
        seen(move=0.9, loss=0.8),
        seen(move=4.0, loss=2.0),
        Seen(4.0, 4.0, -8.0, 1.0, 1.0),
        seen(move=0.5),
        seen(move=1.1, dual=90.0),
        seen(move=30.0, loss=0.5),
        *(seen(move=0.4 * 0.9**r, loss=0.4) for r in range(3)),
        seen(move=1.4, loss=0.5),
        seen(move=1.6, loss=0.6),
    ]
    burst, doubled = [seen(), seen(), seen(move=17.0, loss=0.1)], [seen(), seen(move=16.0, loss=0.1)]
    risen = [seen(dual=0.5**2), seen(move=1.01, dual=(0.75 * 1.55) ** 2)]
    slowly = [seen(), seen(move=11.5, loss=0.5), seen(move=11.5, loss=0.2)]
    regained = [[seen(loss=2.0), seen(), seen(move=4.0, loss=last)] for last in (1.6, 1.64)]
    stories = [
        *((news, p) for p in (0.02, 0.1, 0.5)),
        *((story, 0.5) for story in (doubled, risen, *regained)),
        (burst, 0.02),
        (slowly, 0.05),
        ([seen(move=9.0**r) for r in range(60)], 1.0),
    ]

    def course(auto: Auto) -> list[float]:
        paces = [(pace, p) for story, p in stories for pace in play(*story, p=p, auto=auto)]
        return [x for pace, p in paces for x in (pace.sigma, pace.visits(auto, p))]

    usual = course(AUTO)
    for field in fields(Auto):
        changed = replace(AUTO, **{field.name: 1.3 * getattr(AUTO, field.name)})
        assert course(changed) != usual, field.name


def test_constants_are_written_and_read() -> None:
    assert repr(AUTO) == "auto"
    other = Auto(reach=1.5, grow=0.05)
    assert repr(other) == "auto:reach=1.5,grow=0.05"
    assert parse_setting(repr(other)) == other
    with pytest.raises(UsageError, match=r"option of the policy 'auto'.*strongest"):
        parse_setting("auto:strongest=3")
    with pytest.raises(UsageError, match="reach of auto must be"):
        Auto(reach=math.nan)


def test_the_page_has_the_rules_and_the_constants_of_the_code() -> None:
    """The table of rules names each reason in its order; the table of constants has each field with its default."""
    rows = [line.strip("| \n").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    reasons = [row[0].strip("`") for row in rows if row[0].strip("`") in REASONS]
    assert tuple(reasons) == tuple(rule.reason for rule in RULES)
    constants = {
        row[0].strip("`"): row[1]
        for row in rows
        if re.fullmatch(r"`[a-z_]+`", row[0]) and row[0].strip("`") not in REASONS
    }
    assert constants == {field.name: f"{field.default:g}" for field in fields(Auto)}
