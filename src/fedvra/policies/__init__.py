"""Where a, d, gamma and eta come from, besides plain numbers and tables.

A policy is any function of a :class:`~fedvra.core.cohort.Cohort` that returns one number per client; see ``Setting``. Those
with a name can be written on the command line and in config files:

- ``1/p``: :class:`InverseP`;
- ``10:5@100``: :class:`Stepwise`, one number after another over the rounds; in Python any function of the round will do,
  by way of :func:`over_rounds`;
- :class:`Schedule`: decay, warm-up and cosine, for stepsizes (``--lr-decay``, ``--lr-warmup``, ``--lr-cosine``);
- ``remark1``: :class:`Remark1`, the largest a that the paper's Remark 1 allows;
- ``auto``: :class:`Auto`, FedVRA's defaults, which :class:`Pace` adapts from round to round.

Imports core.
"""

from fedvra.policies.auto import Auto, auto
from fedvra.policies.named import (
    POLICIES,
    InverseP,
    OverRounds,
    Remark1,
    Stepwise,
    inverse_p,
    over_rounds,
    parse_setting,
    remark1,
)
from fedvra.policies.pace import Pace
from fedvra.policies.policy import Policy
from fedvra.policies.schedule import Schedule

__all__ = [
    "POLICIES",
    "Auto",
    "InverseP",
    "OverRounds",
    "Pace",
    "Policy",
    "Remark1",
    "Schedule",
    "Stepwise",
    "auto",
    "inverse_p",
    "over_rounds",
    "parse_setting",
    "remark1",
]
