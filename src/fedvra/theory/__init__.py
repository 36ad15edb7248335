"""The paper's theorems as something to compute with: do their conditions hold, and what do they then promise?

Imports core, samplers, algorithms, problems, engines.
"""

from fedvra.core.rule import discounted_steps
from fedvra.theory.conditions import Condition, local_spread
from fedvra.theory.theorem1 import Theorem1
from fedvra.theory.theorem2 import Theorem2

__all__ = ["Condition", "Theorem1", "Theorem2", "discounted_steps", "local_spread"]
