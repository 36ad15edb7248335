"""One small file per algorithm: its fields, its coefficients, its citation, its departures.

An algorithm is a row of coefficients (sigma, gamma, alpha, w, s, kappa); docs/algorithms.md has the table, which is tested.

FedVRA chooses gamma, a and d by itself unless they are given (``fedvra.policies.pace``).

On problems with two blocks or constraints every one of them is its adapted version: the y-steps and P_X are the problem's.

Imports core, policies.
"""

from fedvra.algorithms.base import REGISTRY, Algorithm, Protocol, register

__all__ = ["REGISTRY", "Algorithm", "Protocol", "register"]
