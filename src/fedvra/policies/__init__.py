"""Where a, d, gamma and eta come from, besides plain numbers and tables.

A policy is any function of a :class:`~fedvra.cohort.Cohort` that returns one number per client; see ``Setting``. Those with a
name can be written on the command line and in config files:

- ``1/p``: :data:`inverse_p`;
- ``10:5@100``: :class:`Stepwise`, one number after another over the rounds; in Python any function of the round will do,
  by way of :func:`over_rounds`;
- ``remark1``: :data:`remark1`, the largest a that the paper's Remark 1 allows;
- ``auto``: :data:`auto`, FedVRA's defaults, which :class:`Pace` adapts from round to round.
"""

from fedvra.policies.pace import Pace
from fedvra.policies.settings import (
    POLICIES,
    Policy,
    Stepwise,
    auto,
    inverse_p,
    over_rounds,
    parse_setting,
    remark1,
)

__all__ = [
    "POLICIES",
    "Pace",
    "Policy",
    "Stepwise",
    "auto",
    "inverse_p",
    "over_rounds",
    "parse_setting",
    "remark1",
]
