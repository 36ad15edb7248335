"""An algorithm of your own in one file, compared with FedVRA on digits: python examples/own_algorithm.py [FOLDER]"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedvra as fv
from fedvra.studies.comparing import compare


@fv.register
@dataclass(frozen=True)
class WarmVRA(fv.Algorithm):
    """FedVRA whose dual stepsize grows over the first rounds, while lam still knows few clients."""

    gamma: float = 0.1
    a: float = 10
    warmup: int = 15

    name: ClassVar[str] = "warmvra"
    label: ClassVar[str] = "FedVRA, warmed up"
    reference: ClassVar[str] = "this file"

    def coefficients(self, cohort, everyone):
        gamma = np.full(len(cohort), self.gamma)
        a = self.a * min(1, (cohort.round + 1) / self.warmup)
        return fv.Coefficients(gamma=gamma, alpha=a * gamma, w=1 / cohort.p, kappa=1 / self.gamma)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/own-algorithm"
    options = {"task": "digits", "rounds": 20}
    print(compare("warmvra:warmup=5,fedvra", options, seeds=[0, 1], out=folder).markdown())
