"""Why there is no client-level noise at the server: a test that tells two neighbouring federations apart; see docs/privacy.md.

    python benchmarks/client_noise.py    writes docs/results/client-noise.json, a few seconds

The usual recipe (DP-FedAvg) clips every upload to the length C and adds Gaussian noise of z*C to their sum in each round. A
client that takes part T times is then promised a Gaussian differential privacy of mu = sqrt(T)/z, as if its uploads were all
that anybody sees of it. Here one client of a federation of quadratics is there, or is not, and the adversary sees x0 after each
round, knows everything else, and uses the likelihood ratio, which is the best test there is. What it can do is measured:
mu = (difference of the means of the log-likelihood ratio)/(its standard deviation), over 2000 runs of each kind.

    fedavg          no duals: what is promised is what is measured
    fedvra exact    noise goes into x0's step; lam = sum omega_i*lam_i, as the algorithm needs it
    fedvra noised   lam is made of the noised sums, and is no longer the sum of the duals
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvra.core import rule

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "client-noise.json"
N, M, P, ROUNDS, STEPS, ETA, RUNS = 20, 5, 10, 60, 10, 0.05, 2000
CLIP, NOISE = 0.5, 4.0
GAMMA, A, D = 0.5, 2.0, 4.0
"""Of FedVRA; kappa is 1/gamma."""


@dataclass
class Side:
    """A federation of many runs at once, as it goes on from what was seen of it: rows of lam_i [N, RUNS, P], and lam."""

    duals: Tensor
    lam: Tensor
    there: bool
    """Whether the first client is."""

    @classmethod
    def begin(cls, there: bool) -> Side:
        return cls(torch.zeros(N, RUNS, P, dtype=torch.float64), torch.zeros(RUNS, P, dtype=torch.float64), there)


def upload(x0: Tensor, lam_i: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Steps 9-13 on f_i(x) = |x - target|^2/2, and the clipped move."""
    x = x0
    for _ in range(STEPS):
        x = rule.local_step(x, x - target, lam_i, x0, ETA, gamma)
    move = x - x0
    return move * (CLIP / move.norm(dim=-1, keepdim=True)).clamp(max=1.0)


def advance(side: Side, x0: Tensor, cohort: list[int], targets: Tensor, noise: Tensor, kind: str) -> Tensor:
    """One round with this noise on the sum of uploads; the new x0."""
    duals = kind != "fedavg"
    gamma, alpha, w = (GAMMA, A * GAMMA, D) if duals else (0.0, 0.0, N / M)
    total = torch.zeros_like(x0)
    for i in cohort:
        if i or side.there:
            sent = upload(x0, side.duals[i], targets[i], gamma)
            total += sent / N
            if duals:
                side.duals[i] = rule.dual_step(side.duals[i], sent, alpha)
    seen = total + noise
    side.lam = rule.server_dual(side.lam, alpha * (seen if kind == "fedvra noised" else total), 0.0, M / N)
    return rule.server_model(x0, side.lam, w * seen, 1.0, 1 / GAMMA if duals else 0.0)


def measure(kind: str, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    targets = torch.from_numpy(rng.standard_normal((N, P)))
    cohorts = [sorted(rng.choice(N, M, replace=False).tolist()) for _ in range(ROUNDS)]
    scale = NOISE * CLIP / N
    ratios, gaps, errors = [], [], []
    for there in (False, True):
        true = Side.begin(there)
        guesses = [Side.begin(False), Side.begin(True)]
        x0 = torch.zeros(RUNS, P, dtype=torch.float64)
        ratio = torch.zeros(RUNS, dtype=torch.float64)
        draws = torch.Generator().manual_seed(seed)
        nothing = torch.zeros_like(x0)
        for cohort in cohorts:
            noise = scale * torch.randn(RUNS, P, dtype=torch.float64, generator=draws)
            new = advance(true, x0, cohort, targets, noise, kind)
            # How far the sum's noise moves x0: by d, and through lam by (1/gamma)*(a*gamma) more where that is made of it.
            factor = {"fedavg": N / M, "fedvra exact": D, "fedvra noised": D + A}[kind]
            absent, present = (advance(guess, x0, cohort, targets, nothing, kind) for guess in guesses)
            for guess, expected in zip(guesses, (absent, present), strict=True):
                if (
                    kind == "fedvra noised"
                ):  # the adversary knows the noised sum under either guess, and so the next lam
                    guess.lam = guess.lam - A * GAMMA * (new - expected) / factor
            shift, found = present - absent, new - absent
            ratio += ((found * shift).sum(1) - (shift * shift).sum(1) / 2) / (factor * scale) ** 2
            x0 = new
        ratios.append(ratio)
        gaps.append(float((true.lam - true.duals.mean(0)).norm(dim=1).mean()))
        errors.append(float((x0 - targets.mean(0)).norm(dim=1).mean()))
    without, with_it = ratios
    spread = math.sqrt(float(without.var() + with_it.var()) / 2)
    taken = sum(0 in cohort for cohort in cohorts)
    return {
        "rounds with the client": taken,
        "mu promised": round(math.sqrt(taken) / NOISE, 3),
        "mu measured": round(float(with_it.mean() - without.mean()) / spread, 3),
        "gap of lam": round(gaps[1], 4),
        "distance to the optimum": round(errors[1], 3),
    }


if __name__ == "__main__":
    found = {kind: measure(kind) for kind in ("fedavg", "fedvra exact", "fedvra noised")}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
