"""What a round is to be, before anybody works: who takes part, how much each does, and with which coefficients.

Every engine asks here, so that a federation of this machine's processes and one of distant machines run the same rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.algorithms.base import Algorithm
from fedvra.clock.system import System
from fedvra.core import rule
from fedvra.core.cohort import Cohort, Floats, Ints, Setting, resolve
from fedvra.core.compressor import Compressor
from fedvra.core.deploy import Deploy
from fedvra.core.errors import DivergedError, UsageError, require
from fedvra.core.loops import Done, Loop
from fedvra.core.members import Members
from fedvra.core.objects import Value
from fedvra.core.optimisers import PLAIN, LocalOptimiser
from fedvra.core.record_dp import RecordDP
from fedvra.local.metrics import Metrics, check_metrics
from fedvra.local.protocol import SolverSettings
from fedvra.policies import Auto
from fedvra.policies.refusals import Refusal
from fedvra.problems.base import Problem
from fedvra.samplers import Participation, Sampler, among
from fedvra.samplers.base import Losses
from fedvra.samplers.work import Work

NOTHING: Mapping[str, float] = MappingProxyType({})
"""What is remembered before the first round."""


@dataclass(frozen=True)
class Experiment(Value):
    """Everything that determines a run's numbers (how it is computed, e.g. by how many workers, is not part of it).

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))

    >>> fv.Experiment(fv.FedAvg(), costs, sampler=fv.Full(), work=fv.Steps(2)).lr
    0.01
    """

    algorithm: Algorithm
    problem: Problem
    sampler: Sampler
    work: Work
    data: Any = None
    lr: Setting = 0.01
    batch_size: int | None = None
    seed: int = 0
    weights: Any = "equal"
    x_init: Tensor | None = None
    drop: float = 0.0
    eval_every: int = 1
    drop_last: bool = False
    solver: SolverSettings = field(default_factory=SolverSettings)
    refuse: Refusal | None = None
    system: System | None = None
    metrics: Metrics = field(default_factory=dict)
    """Figures of the outputs and targets of the test data, by name."""
    local: LocalOptimiser = PLAIN
    compress: Compressor | None = None
    """What is done to uploads."""
    compress_down: Compressor | None = None
    """What is done to x0, and to lam where it is sent."""
    privacy: RecordDP | None = None
    """What clients do to the gradients of single records."""
    deploy: Deploy | None = None
    """Which model the run is for; None: that of its algorithm."""

    @property
    def deployment(self) -> Deploy:
        """Which model the run is for."""
        return self.algorithm.deploy if self.deploy is None else self.deploy

    def start(self) -> Tensor:
        """x0 before the first round: ``x_init``, or the problem's own."""
        x0 = self.problem.initial(self.seed)
        return x0 if self.x_init is None else self.x_init.detach().to(x0.dtype, copy=True)


def client_weights(weights: Any, samples: Ints) -> Floats:
    """omega_i, summing to 1: "equal" (1/N), "samples" (n_i/n), or given.

    >>> client_weights("samples", np.array([1, 3]))
    array([0.25, 0.75])
    """
    raw = raw_weights(weights, samples)
    return np.asarray(raw / raw.sum())


def raw_weights(weights: Any, samples: Ints, members: Members | None = None) -> Floats:
    """What omega_i is in proportion to: 1, n_i, or as given; 0 for the client numbers of nobody.

    >>> raw_weights("equal", np.array([1, 3, 2]), Members.founders(3).leave(1, round=4))
    array([1., 0., 1.])
    """
    if isinstance(weights, str):
        require(
            weights in ("equal", "samples"),
            f"weights must be 'equal', 'samples' or one number per client, got {weights!r}.",
        )
        raw = np.ones(len(samples)) if weights == "equal" else samples.astype(np.float64)
    else:
        raw = np.asarray(weights, dtype=np.float64)
        require(
            raw.shape == samples.shape, f"weights: {len(samples)} clients need as many weights, got shape {raw.shape}."
        )
        require(
            bool(np.all(np.isfinite(raw)) and np.all(raw >= 0) and raw.sum() > 0),
            "weights must be >= 0 and not all zero.",
        )
    if members is None:
        return raw
    raw = np.where(members.present, raw, 0.0)
    require(raw.sum() > 0, "those who are there have no weight: give them some, or let somebody join who has.")
    return raw


class Plan:
    """An experiment and its clients: draws each round's cohort and gives it its coefficients."""

    def __init__(self, experiment: Experiment, samples: Ints, members: Members | None = None) -> None:
        self.experiment, self.samples = experiment, samples
        self.total = len(samples)
        self.members = Members.founders(self.total) if members is None else members
        """Who is there; by default everybody, all the time."""
        self.sampler = among(experiment.sampler, self.members)
        raw = raw_weights(experiment.weights, samples, members)
        self.omega = np.asarray(raw / raw.sum())
        self._check()

    def cohort(self, round: int, counts: Ints, losses: Losses, memory: Mapping[str, float] = NOTHING) -> Cohort:
        """The sampler's draw with all that is known of it; a client with no steps to do does not take part.

        ``counts`` says how often each client took part so far, ``memory`` what the algorithm noted after the last round.
        """
        e = self.experiment
        losses = losses if e.privacy is None else _withheld
        cohort = self.describe(round, self.sampler.draw(round, e.seed, self.total, losses), counts, memory)
        cohort = subset(cohort, cohort.steps > 0)
        if e.algorithm.everyone_takes_part:
            there = len(self.members.numbers)
            require(
                len(cohort) == there,
                f"{e.algorithm.label} is defined for full participation, and round {round + 1} had {len(cohort)} of "
                f"{there} clients at work: use the sampler Full() (--sampler full).",
            )
        return cohort

    def describe(self, round: int, clients: Ints, counts: Ints, memory: Mapping[str, float] = NOTHING) -> Cohort:
        """These clients as a cohort."""
        e = self.experiment
        samples = self.samples[clients]
        steps = e.work.steps(round, clients, samples, e.batch_size, e.seed, e.drop_last)
        cohort = Cohort(
            round=round,
            total=self.total,
            clients=clients,
            p=self.sampler.probabilities(round, clients, self.total, Participation(round, counts, self.members.joined)),
            steps=steps,
            samples=samples,
            omega=self.omega[clients],
            eta=np.zeros(len(clients)),
            seed=e.seed,
            memory=memory,
            effective=self.effective(steps),
        )
        eta = resolve(e.lr, cohort, "lr")
        require(bool(np.all(eta > 0)), f"the learning rate must be > 0, got {eta.min() if len(eta) else eta}.")
        return replace(cohort, eta=eta)

    def effective(self, steps: Ints) -> Floats | None:
        """What so many local steps amount to, where that is another number; see ``fedvra.core.optimisers``."""
        local = self.experiment.local
        return None if local.plain else local.amounts(steps)

    def row(self, cohort: Cohort, counts: Ints) -> rule.Coefficients:
        """The algorithm's coefficients, checked."""
        row = self.experiment.algorithm.coefficients(
            cohort, lambda: self.describe(cohort.round, self.members.numbers, counts, cohort.memory)
        )
        for name in ("gamma", "alpha", "w"):
            values = getattr(row, name)
            require(
                bool(np.all(np.isfinite(values)) and np.all(values >= 0)),
                f"round {cohort.round + 1}: {name} must be finite and >= 0 for every client, got {values.tolist()}.",
            )
        worst = float(np.max(row.gamma * cohort.eta))
        require(
            worst <= 1,
            f"gamma*lr must not exceed 1 (it is {worst:g}): local steps would overshoot x0; lower gamma or lr.",
        )
        return row

    def settled(
        self, cohort: Cohort, row: rule.Coefficients, done: Done, counts: Ints
    ) -> tuple[Cohort, rule.Coefficients]:
        """Cohort and coefficients once it is known what loops of the clients' own did.

        The penalty stays what the clients were told. The server's step is that for the work that was done.
        """
        cohort = replace(cohort, steps=done.steps, effective=done.carried / cohort.eta)
        alpha = rule.true_alpha(row.alpha, row.rate, done.carried)
        return cohort, replace(self.row(cohort, counts), gamma=row.gamma, alpha=alpha)

    def _check(self) -> None:
        e = self.experiment
        self.sampler.check(self.total)
        e.work.check(self.total)
        require(0 <= e.drop < 1, f"drop must be a probability in [0, 1), got {e.drop}.")
        require(e.batch_size is None or e.batch_size >= 1, f"batch_size must be >= 1 or None, got {e.batch_size}.")
        require(isinstance(e.drop_last, bool), f"drop_last must be True or False, got {e.drop_last!r}.")
        require(
            e.refuse is None or isinstance(e.refuse, Refusal),
            f"refuse must be a rule such as fv.MedianNorm(3) or None, got {e.refuse!r}.",
        )
        require(
            e.system is None or isinstance(e.system, System),
            f"system must be an object such as fv.System(step=0.1, up=1e6) or None, got {e.system!r}.",
        )
        check_metrics(e.metrics)
        require(
            e.compress is None or not getattr(e.algorithm, "skip", 0),
            f"{e.algorithm.label} with skip > 0 lets clients continue from their own points, and no move from there is sent: "
            "set skip to 0, or leave compress out.",
        )
        require(e.eval_every >= 0, f"eval_every must be >= 0 (0: never), got {e.eval_every}.")
        require(
            isinstance(e.local, LocalOptimiser),
            f"local must be an optimiser such as fv.SGD(momentum=0.9), fv.Adam() or fv.Torch(...), got {e.local!r}.",
        )
        e.local.check(e.problem.decay)
        if not e.local.counts:  # what cannot be is known before the first round
            one, counts = np.zeros(1, dtype=np.int64), np.zeros(self.total, dtype=np.int64)
            alone = Cohort(
                0, self.total, one, np.ones(1), one + 1, self.samples[:1], self.omega[:1], np.full(1, 1e-300)
            )
            try:
                self.row(replace(alone, effective=self.effective(alone.steps)), counts)
            except UsageError as refusal:
                raise UsageError(f"{e.algorithm.label} does not go with {e.local.text()}: {refusal}") from None
        require(
            e.privacy is None or not isinstance(e.local, Loop),
            "privacy: a training loop of one's own sees records as they are: leave local=fv.Loop(...) out.",
        )
        require(
            not (isinstance(e.local, Loop) and e.algorithm.own_anchor),
            f"{e.algorithm.label} keeps an x0 of each client's own, which a training loop of one's own does not know of.",
        )
        if e.algorithm.everyone_takes_part:
            require(e.drop == 0, f"{e.algorithm.label} needs every client's reply in every round: leave drop at 0.")
            require(
                e.system is None or e.system.deadline is None,
                f"{e.algorithm.label} needs every client's reply in every round: leave the deadline out.",
            )
            require(e.refuse is None, f"{e.algorithm.label} needs every client's reply: it cannot refuse any.")
        if e.x_init is not None:
            expected = e.problem.initial(e.seed)
            require(
                tuple(e.x_init.shape) == tuple(expected.shape),
                f"x_init has shape {list(e.x_init.shape)}, the problem needs {list(expected.shape)}.",
            )


def subset(cohort: Cohort, mask: NDArray[np.bool_]) -> Cohort:
    """Some clients of a cohort."""
    arrays = {name: getattr(cohort, name)[mask] for name in ("clients", "p", "steps", "samples", "omega", "eta")}
    return replace(cohort, **arrays, effective=None if cohort.effective is None else cohort.effective[mask])


def _withheld(clients: Ints) -> Floats:
    raise UsageError("privacy: the sampler goes by clients' losses, which are not reported: use another, e.g. Uniform.")


def require_finite(algorithm: Algorithm, x0: Tensor, round: int) -> None:
    """Raise DivergedError where x0 is no longer finite after a round."""
    if not bool(torch.isfinite(x0.sum())):  # one pass: a NaN or an infinity shows in the sum
        knob = likely_knob(algorithm)
        raise DivergedError(f"{algorithm.label} diverged in round {round}: x0 is no longer finite; {knob}", round)


def likely_knob(algorithm: Algorithm) -> str:
    """What to try when a run has diverged."""
    knobs = [name for name in ("a", "d", "global_lr") if name in algorithm.__dataclass_fields__]
    if isinstance(getattr(algorithm, "a", None), Auto):
        return "try a smaller lr."
    return f"try a smaller {' or '.join([*knobs, 'lr'])}."
