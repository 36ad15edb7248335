"""Policies that say a setting as a function of the cohort, and how they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedvra.core.calls import Language
from fedvra.core.cohort import Cohort, Floats, Setting
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.policies.auto import Auto, auto
from fedvra.policies.policy import ForFedVRA, Policy


@dataclass(frozen=True, repr=False)
class Stepwise(Value):
    """One number after another over the rounds: ``values[k]`` from round ``starts[k]`` on, rounds counted from 1.

    >>> Stepwise.parse("10:5@100:1@200")
    10:5@100:1@200
    """

    values: tuple[float, ...]
    starts: tuple[int, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.starts, self.starts[1:], strict=False))
        require(
            len(self.values) == len(self.starts) > 0 and self.starts[0] == 1 and ascending,
            f"a schedule needs a value from round 1 on and then later and later rounds, got {self!r}.",
        )
        require(
            all(0 <= value < math.inf for value in self.values),
            f"a schedule's values must be finite and >= 0, got {self!r}.",
        )

    @classmethod
    def parse(cls, text: str) -> Stepwise:
        """``10:5@100``: 10, and 5 from round 100 on."""
        number = r"[-+.\deE]+"
        require(
            re.fullmatch(rf"{number}(:{number}@\d+)+", text) is not None,
            f"{text!r} is not a schedule: write VALUE:VALUE@ROUND:VALUE@ROUND, such as 10:5@100.",
        )
        first, *rest = text.split(":")
        later = [piece.split("@") for piece in rest]
        try:
            values = (float(first), *(float(v) for v, _ in later))
        except ValueError:
            raise UsageError(f"{text!r} is not a schedule: one of its values is not a number.") from None
        return cls(values, (1, *(int(r) for _, r in later)))

    def __call__(self, cohort: Cohort) -> float:
        return [v for v, start in zip(self.values, self.starts, strict=True) if cohort.round + 1 >= start][-1]

    def __repr__(self) -> str:
        later = [f"{v:g}@{r}" for v, r in zip(self.values[1:], self.starts[1:], strict=True)]
        return ":".join([*(f"{v:g}" for v in self.values[:1]), *later])


@dataclass(frozen=True, repr=False)
class OverRounds(Policy):
    """What :func:`over_rounds` makes."""

    function: Callable[[int], float]
    name: ClassVar[str] = "over_rounds"

    def __call__(self, cohort: Cohort) -> float:
        return float(self.function(cohort.round))


def over_rounds(function: Callable[[int], float]) -> OverRounds:
    """A setting that is a function of the round (0, 1, ...) alone.

    >>> over_rounds(lambda r: 10 / (1 + r / 100)).name
    'over_rounds'
    """
    return OverRounds(function)


@dataclass(frozen=True, repr=False)
class InverseP(Policy):
    """d_i = 1/p_i^r: makes the expected global model that of full participation, for any sampler (Remark 1).

    >>> import fedvra as fv
    >>> fv.FedVRA(gamma=0.1, a=5, d=fv.InverseP())
    FedVRA(gamma=0.1, a=5, d=1/p)
    """

    name: ClassVar[str] = "1/p"

    def __call__(self, cohort: Cohort) -> Floats:
        return 1.0 / cohort.p


@dataclass(frozen=True, repr=False)
class Remark1(ForFedVRA):
    r"""a_i = 1/(eta_i*gamma_i*Q~_i) - d_i, or 0 where that is negative: equality in the condition of the paper's Remark 1.

    Q~ = (1 - (1 - gamma*eta)^Q) / (gamma*eta). It needs gamma and d, so the algorithm works it out. It is not safe for every
    gamma: a/N*m, the multiplier of the server's momentum, grows without bound as gamma falls.

    >>> import fedvra as fv
    >>> fv.FedVRA(gamma=0.1, a=fv.Remark1(), d=10)
    FedVRA(gamma=0.1, a=remark1, d=10)
    """

    name: ClassVar[str] = "remark1"


inverse_p, remark1 = InverseP(), Remark1()

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (inverse_p, remark1, auto)}
"""Policies by the name they have on the command line and in config.yaml."""


def parse_setting(text: str | float | list[float]) -> Setting:
    """A setting as written on the command line or in a config file: a number, a list, a schedule, or the name of a policy.

    >>> parse_setting("0.1"), parse_setting("1/p") is inverse_p, parse_setting("10:5@100"), parse_setting("auto:strongest=1.5")
    (0.1, True, 10:5@100, auto:strongest=1.5)
    """
    if not isinstance(text, str):
        return text
    if text in POLICIES:
        return POLICIES[text]
    if text.startswith("auto:"):
        return Language("policy").make(text, {"auto": Auto}.__getitem__)
    if "@" in text:
        return Stepwise.parse(text)
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is neither a number nor a policy; known policies: {', '.join(POLICIES)}, and schedules such as 10:5@100."
        ) from None
