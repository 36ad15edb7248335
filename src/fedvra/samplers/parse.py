"""Samplers as the command line writes them.

For example ``uniform``, ``bernoulli:0.1`` or ``availability:period=24,duty=0.5,inner=uniform``.
"""

from __future__ import annotations

from fedvra.core.calls import Language
from fedvra.samplers.base import SAMPLERS, Sampler


def parse_sampler(text: str, cohort_size: int) -> Sampler:
    """The sampler that ``text`` names; its argument ``m`` is ``cohort_size``, which has an option of its own.

    A sampler as an argument can itself have one argument, as in ``inner=bernoulli:0.1``.

    >>> parse_sampler("uniform", cohort_size=10)
    Uniform(m=10)
    >>> parse_sampler("power-of-choice:20", cohort_size=10)
    PowerOfChoice(m=10, candidates=20, prior=1.0)
    """
    language = Language(
        "sampler",
        given={"m": (cohort_size, "--cohort, the size of the cohort")},
        nested={Sampler: lambda inner: parse_sampler(inner, cohort_size)},
    )
    return language.make(text, SAMPLERS.get)
