"""What the server of a run carries from round to round."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedvra.core.adaptive import Memory
from fedvra.core.cohort import Ints
from fedvra.core.deploy import Deployed, Deploying
from fedvra.local.protocol import StepPath


@dataclass
class ServerState(Deploying):
    """What the server carries from round to round; with the client store, all that a checkpoint holds."""

    round: int
    x0: Tensor
    lam: Tensor
    aux: Tensor | None
    counts: Ints
    """How often each client took part."""
    private_steps: Ints
    """How many noised gradients each client has made use of, where there is privacy to account for."""
    memory: Memory = field(default_factory=Memory)
    """What an algorithm that adapts carries from round to round."""
    deployed: Deployed | None = None
    """The model that the run is for, where it is not x0; None before the first round."""
    path: StepPath = field(default_factory=lambda: StepPath(""))
    """The way in which all workers take local steps."""
    time: float = 0.0
    """Simulated seconds gone by, where there is a system to tell."""
