"""What the theorems take for given and a run need not do: its settings round by round, and where they are out of reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedvra.core.adaptive import Adaptive
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError
from fedvra.samplers import Availability, Bernoulli, Cyclic, Replay
from fedvra.theory.coverage import Settings
from fedvra.theory.seeing import participation
from fedvra.theory.stepsizes import read_stepsizes

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation

ROUNDS = 1000
"""Whose settings are looked at, spread over the run, where there are more."""
RARE = 1e-4
"""The probability of an empty round that is not worth a word."""


@dataclass
class Doubts:
    """Why the theorem does not speak of a run, and what is to be known of the figures."""

    beyond: list[str] = field(default_factory=list)
    """Whatever its stepsizes."""
    reasons: list[str] = field(default_factory=list)
    """With the stepsizes it has."""
    notes: list[str] = field(default_factory=list)


def settings_of_run(federation: Federation, clients: Ints, rounds: int, doubts: Doubts) -> Settings:
    """The settings of these clients in every round (or a thousand of them), and what in them the theorem does not speak of."""
    experiment = federation.experiment
    label = experiment.algorithm.label
    looked_at = np.unique(np.linspace(0, rounds - 1, min(rounds, ROUNDS)).astype(np.int64))
    if len(looked_at) < rounds:
        doubts.notes.append(f"the settings of {len(looked_at)} of the {rounds} rounds were looked at.")
    rows: dict[str, list[Floats]] = {name: [] for name in ("p", "steps", "eta", "gamma", "a", "d")}
    for r in looked_at.tolist():
        cohort = federation.plan.describe(r, clients, federation.state.counts)
        p = participation(federation, cohort)
        for name, values in (("p", p), ("steps", cohort.steps), ("eta", cohort.eta)):
            rows[name].append(np.asarray(values, dtype=np.float64))
        if not np.all((cohort.p > 0) & (cohort.p <= 1)):
            doubts.beyond.append("the probabilities of those who take no part are not known.")
            break
        if not cohort.steps.all():
            doubts.beyond.append("some clients have no local steps to do in some rounds, so their duals stand still.")
            break
        try:
            found = read_stepsizes(federation.plan.row(cohort, federation.state.counts))
        except UsageError as refusal:
            found = f"it cannot run ({str(refusal).removesuffix('.')})"
        if isinstance(found, str):
            doubts.reasons.append(f"{label} is not an instance of FedVRA: {found}.")
            break
        for name, values in (("gamma", found.gamma), ("a", found.a), ("d", found.d)):
            rows[name].append(values)
    tables = {name: np.array(values) for name, values in rows.items()}
    if isinstance(experiment.algorithm, Adaptive) and experiment.algorithm.adapts:
        doubts.reasons.append(
            f"{label} adapts its stepsizes during the run, while the theorem fixes them; those shown are the initial ones."
        )
    if not experiment.local.plain:
        doubts.reasons.append(f"local steps are taken by {experiment.local.text()}, and the theorem has plain SGD.")
    for name in ("gamma", "eta"):
        if len(tables[name]) and np.ptp(tables[name], axis=0).any():
            doubts.reasons.append(f"{name} changes over the rounds, and the theorem keeps it.")
    if isinstance(experiment.sampler, (Cyclic, Availability, Replay)) or not experiment.sampler.exact:
        doubts.beyond.append(
            "cohorts are no independent draws: the theorem needs P(i in A^r) = p_i whatever happened before."
        )
    nobody = _nobody(federation)
    if nobody > RARE:
        doubts.notes.append(
            f"in {nobody:.2g} of the rounds nobody answers and x0 stays where it is; the theorem moves it by -beta*lam."
        )
    if len(rows["gamma"]) < len(rows["p"]):
        return Settings(tables["p"], tables["steps"], tables["eta"][0], None, None, None)
    if not tables["d"].all():
        doubts.reasons.append(
            "d = 0, so what clients send does not move x0, and the construction of appendix B has no room."
        )
    return Settings(*(tables["p"], tables["steps"], tables["eta"][0]), tables["gamma"][0], tables["a"], tables["d"])


def _nobody(federation: Federation) -> float:
    """The probability that no reply counts in the first round."""
    everyone = federation.plan.describe(0, np.arange(federation.total), federation.state.counts)
    if isinstance(federation.experiment.sampler, Bernoulli):
        return float(np.prod(1 - participation(federation, everyone)))
    cohort = max(1.0, float(np.nansum(everyone.p)))
    return float(federation.experiment.drop**cohort)
