"""Those who are worst off come first: a biased sampler, without a formula for p."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole
from fedvra.samplers.base import SAMPLERS, Losses, Participation, Sampler, check_size, random_subset


@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    r"""Of ``candidates`` clients drawn uniformly, the m with the greatest loss f_i(x0) take part.

    How likely that is depends on every client's loss and changes as x0 moves, so p_i^r is *estimated* from the rounds
    so far, R of them, c_i with client i, as if each client had taken part ``prior`` times before the first round:

    .. math:: \hat p_i^r = \min\Big\{\frac{c_i + prior}{R + prior \cdot N/m},\; \frac{candidates}{N}\Big\}

    Before the first round this is m/N, over many rounds it becomes the frequency c_i/R, and without the bound, which
    holds because nobody takes part without being a candidate, the estimates of all clients sum to m.

    A client that turns up after long absence has a small estimate, hence a great weight 1/p: raise ``prior`` to temper it.
    Ties in the loss are broken at random, so equal losses make this :class:`Uniform`. A NaN loss counts as infinite.

    Args:
        m: the size of the cohort.
        candidates: how many clients are asked for their loss, m <= candidates <= N. At m there is no bias.
        prior: the weight of m/N in the estimate of p, as a number of rounds each client took part in; positive.

    Departures from the paper: candidates are drawn uniformly, where Cho et al. draw them in proportion to their number
    of samples.

    >>> worst = PowerOfChoice(m=1, candidates=3)
    >>> worst.draw(round=0, seed=0, total=3, losses=lambda clients: np.array([0.1, 0.9, 0.5])[clients])
    array([1])

    Reference: Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022.
    """

    m: int
    candidates: int
    prior: float = 1.0
    exact = False

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        candidates = random_subset(stream(seed, Purpose.CANDIDATES, round), total, self.candidates)
        loss = np.asarray(losses(candidates), dtype=np.float64)
        require(
            loss.shape == candidates.shape,
            f"PowerOfChoice: the losses of {len(candidates)} clients came with shape {list(loss.shape)}.",
        )
        loss = np.where(np.isnan(loss), np.inf, loss)
        tie_break = stream(seed, Purpose.COHORT, round).permutation(len(candidates))
        greatest_first = np.lexsort((tie_break, -loss))
        return np.sort(candidates[greatest_first[: self.m]])

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        counts = history.counts[clients].astype(np.float64)
        estimate = (counts + self.prior) / (history.seen(clients) + self.prior * total / self.m)
        return estimate.clip(max=self.candidates / total)

    def check(self, total: int) -> None:
        check_whole("PowerOfChoice: candidates", self.candidates)
        require(
            self.candidates <= total,
            f"PowerOfChoice: candidates = {self.candidates} is more than the number of clients, {total}.",
        )
        check_size(self.m, self.candidates, "the number of candidates")
        require(0 < self.prior < float("inf"), f"PowerOfChoice: prior must be a positive number, got {self.prior}.")


SAMPLERS.add("power-of-choice", PowerOfChoice)
