"""How auto's multiplier follows what the server sees: each line of the table in docs/adaptive-how.md."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import Field, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvra.core.adaptive import Seen, look
from fedvra.core.errors import UsageError
from fedvra.policies import Auto, Pace, parse_setting
from fedvra.policies.pace import strongest, visits
from fedvra.policies.pace_rules import REASONS, RULES

AUTO = Auto()
PAGE = (Path(__file__).parents[2] / "docs/adaptive-how.md").read_text(encoding="utf-8")
LEVEL = {"move": 1.1}
"""Uploads a little above the first ones: a round in which nothing happens."""


def seen(move: float = 1.0, loss: float = 1.0) -> Seen:
    return Seen(move, loss)


def play(*rounds: Seen, p: float = 0.1, auto: Auto = AUTO) -> list[Pace]:
    paces = [Pace.first(auto, p)]
    for each in rounds:
        paces.append(paces[-1].after(auto, p, 1.0, each))
    return paces


def changes(paces: list[Pace]) -> list[float]:
    return [math.log(b.sigma / a.sigma) for a, b in itertools.pairwise(paces)]


def test_the_multiplier_is_earned_by_shrinking_uploads_up_to_a_bound() -> None:
    paces = play(*(seen(move=0.8**r) for r in range(12)))
    assert paces[0].sigma == 1
    assert changes(paces)[:6] == pytest.approx([0.1] * 6)
    assert paces[-1].sigma == AUTO.strongest < 2
    assert {pace.reason for pace in paces} == {"start", "uploads are the smallest so far"}


def test_a_round_in_which_nothing_happens_changes_nothing() -> None:
    paces = play(seen(), *(seen(**LEVEL) for _ in range(50)))
    assert changes(paces)[1:] == pytest.approx([0] * 50, abs=1e-12)
    assert paces[-1].reason == "steady"


def test_the_multiplier_is_cut_when_uploads_grow() -> None:
    paces = play(seen(), seen(move=100.0), seen(move=9.0), seen(move=5.0))
    assert changes(paces)[1:] == pytest.approx([-0.5, 0, 0])  # once is enough where it helped
    assert [pace.reason for pace in paces[2:]] == ["uploads grew"] * 3
    last = play(*(seen(move=10.0**r) for r in range(99)))[-1]
    assert last.sigma == pytest.approx(0.1)  # p: the server moves along lam at least as far as a client does in a round
    assert play(*(seen(move=10.0**r) for r in range(99)), p=1.0)[-1].sigma == 1


def test_growth_in_vain_is_cut_earlier() -> None:
    """Where the training loss does not fall, uploads need not double first."""
    grown = [seen(), seen(move=1.5), seen(move=3.0)]  # the root of the mean is then 1.07 and 1.32

    def last_change(*losses: float) -> float:
        return changes(play(*(replace(each, loss=loss) for each, loss in zip(grown, losses, strict=True))))[-1]

    assert last_change(2.0, 1.5, 1.0) == 0
    assert last_change(2.0, 1.5, 2.0) == pytest.approx(-0.5)
    assert last_change(2.0, 1.0, 1.12) == 0  # above its lowest by less than an eighth of the range
    assert last_change(-8.0, -8.5, -8.0) == pytest.approx(-0.5)  # neither the sign of a loss nor its unit matters
    assert last_change(2.0, math.inf, math.nan) == 0  # no news is no bad news


def test_lam_is_a_mean_over_ten_rounds_at_least() -> None:
    """n/p rounds: one visit of a client where few take part, ten where everybody does."""
    for p, n in ((0.01, 1), (0.1, 1), (0.2, 2), (1.0, 10)):
        assert visits(AUTO, p) == pytest.approx(n)
    assert visits(Auto(memory=20), 0.1) == 2


def test_fewer_clients_per_round_start_more_carefully() -> None:
    starts = [Pace.first(AUTO, p).sigma for p in (0.001, 0.02, 0.05, 0.1, 1.0)]
    np.testing.assert_allclose(starts, [0.001, 0.12, 0.75, 1, 1])
    np.testing.assert_allclose(
        [strongest(AUTO, p) for p in (0.001, 0.02, 0.05, 0.1, 1.0)], [0.001, 0.12, 0.75, 1.9, 1.9]
    )


def test_scalars_do_not_overflow() -> None:
    assert look(torch.full((4,), 1e30), 1.0).move == pytest.approx(4e60)
    assert Pace.first(AUTO, 0.1).after(AUTO, 0.1, 1.0, Seen(math.inf, math.inf)).sigma > 0


# -- the constants ------------------------------------------------------------------------------------------------------


def test_every_constant_counts() -> None:
    """Each changes some course of events: a field that did nothing would be a promise that is not kept."""
    news = [
        seen(),
        seen(move=0.9, loss=0.8),
        seen(move=4.0, loss=2.0),
        seen(move=4.0),
        seen(move=0.5),
        seen(move=1.1),
        seen(move=30.0, loss=0.5),
        *(seen(move=0.4 * 0.9**r, loss=0.4) for r in range(3)),
        seen(move=1.4, loss=0.5),
        seen(move=1.6, loss=0.6),
    ]
    doubled = [seen(), seen(move=16.0, loss=0.1)]
    slowly = [seen(), seen(move=11.5, loss=0.5), seen(move=11.5, loss=0.2)]
    regained = [[seen(loss=2.0), seen(), seen(move=4.0, loss=last)] for last in (1.1, 1.14)]
    stories = [
        *((news, p) for p in (0.02, 0.1, 0.5)),
        *((story, 0.5) for story in (doubled, *regained)),
        (slowly, 0.05),
        ([seen(move=9.0**r) for r in range(60)], 1.0),
        ([seen(move=0.8**r) for r in range(12)], 0.1),
    ]

    def course(auto: Auto) -> list[float]:
        paces = [(pace, p) for story, p in stories for pace in play(*story, p=p, auto=auto)]
        return [x for pace, p in paces for x in (pace.sigma, visits(auto, p))]

    usual = course(AUTO)
    for field in fields(Auto):
        changed = replace(AUTO, **{field.name: 1.3 * getattr(AUTO, field.name)})
        assert course(changed) != usual, field.name


def test_constants_are_written_and_read() -> None:
    assert repr(AUTO) == "auto"
    other = Auto(strongest=1.5, grow=0.05)
    assert repr(other) == "auto:strongest=1.5,grow=0.05"
    assert parse_setting(repr(other)) == other
    with pytest.raises(UsageError, match=r"option of the policy 'auto'.*reach"):
        parse_setting("auto:reach=3")


@pytest.mark.parametrize("field", fields(Auto), ids=lambda field: field.name)
def test_constants_that_make_no_sense_are_refused(field: Field[float]) -> None:
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match=rf"{field.name} of auto must be a finite number >=? 0, got {wrong:g}\."):
            Auto(**{field.name: wrong})
    if field.name in ("first", "strongest"):  # sigma itself
        with pytest.raises(UsageError, match=f"{field.name} of auto must be a finite number > 0, got 0"):
            Auto(**{field.name: 0.0})
    else:
        Auto(**{field.name: 0.0})


def test_sigma_does_not_leap() -> None:
    with pytest.raises(UsageError, match="grow of auto, of log sigma per round, must be at most 1, got 10000"):
        parse_setting("auto:grow=1e4")


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
