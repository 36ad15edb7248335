r"""Who takes part in round r, and with what probability p_i^r.

One file per sampler; a file added to this folder, or an entry point of the group ``fedvra.samplers`` in another
distribution, is known to the command line by the name it registers.

| sampler                      | |A^r|           | p_i^r                                       |
|------------------------------|-----------------|---------------------------------------------|
| ``Full()``                   | N               | 1                                           |
| ``Uniform(m)``               | m               | m / N                                       |
| ``Bernoulli(p)``             | varies, may be 0| p_i                                         |
| ``Weighted(p)``              | sum_i p_i       | p_i                                         |
| ``Cyclic(m)``                | m or a little less| 1 / number of groups (long-run frequency) |
| ``PowerOfChoice(m, c)``      | m               | estimated from past rounds                  |
| ``Availability(inner, ...)`` | varies, may be 0| the inner sampler's, while available        |
| ``Replay(cohorts)``          | as given        | as given, else \|A^r\| / N                  |

Imports core.
"""

from fedvra.samplers.availability import Availability
from fedvra.samplers.base import SAMPLERS, Losses, Participation, Sampler
from fedvra.samplers.bernoulli import Bernoulli
from fedvra.samplers.cyclic import Cyclic
from fedvra.samplers.full import Full
from fedvra.samplers.membership import among
from fedvra.samplers.parse import parse_sampler
from fedvra.samplers.power_of_choice import PowerOfChoice
from fedvra.samplers.replay import Replay
from fedvra.samplers.uniform import Uniform
from fedvra.samplers.weighted import Weighted

__all__ = [
    "SAMPLERS",
    "Availability",
    "Bernoulli",
    "Cyclic",
    "Full",
    "Losses",
    "Participation",
    "PowerOfChoice",
    "Replay",
    "Sampler",
    "Uniform",
    "Weighted",
    "among",
    "parse_sampler",
]
