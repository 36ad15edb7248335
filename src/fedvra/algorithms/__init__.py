"""One small file per algorithm: its fields, its coefficients, its citation, its departures.

| algorithm        | sigma | gamma | alpha     | w       | s                  | kappa   |
|------------------|-------|-------|-----------|---------|--------------------|---------|
| FedAvg, FedProx  | 0     | 0, mu | 0         | 1 or 1/p| 1/sum omega or 1   | 0       |
| FedNova          | 0     | 0     | 0         | 1/Q     | sum wQ / (sum w)^2 | 0       |
| SCAFFOLD         | 1     | 0     | 1/(eta Q) | eta_g/p | 1                  | 0       |
| VRL-SGD          | 1     | 0     | 1/(eta Q) | 1       | 1                  | 0       |
| FedADMM          | 0     | gamma | gamma     | 1       | 1                  | beta    |
| FedPD            | 0     | gamma | gamma     | 1       | 1                  | 1/gamma |
| FedDyn           | 0     | gamma | gamma     | 1/p     | 1                  | 1/gamma |
| FedVRA, FedVRA-U | 0     | gamma | a*gamma   | d       | 1                  | beta    |

FedVRA chooses gamma, a and d by itself unless they are given (``fedvra.policies.pace``).

On problems with two blocks or constraints every one of them is its adapted version: the y-steps and P_X are the problem's.
"""

from fedvra.algorithms.base import REGISTRY, Algorithm, Protocol, register

__all__ = ["REGISTRY", "Algorithm", "Protocol", "register"]
