"""What follows a run: one interface for observers, stopping rules, files, checkpoints, trackers and displays."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.deploy import Deployed
from fedvra.core.errors import UsageError
from fedvra.core.objects import Value
from fedvra.problems.base import module_of
from fedvra.runs.files import Record, RunSummary, Status
from fedvra.runs.history import numbers

if TYPE_CHECKING:
    from fedvra.engines.experiment import Experiment
    from fedvra.engines.federation import Federation


class Server(Protocol):
    """What the server carries from round to round, in the simulator and on Flower alike."""

    round: int
    x0: Tensor
    lam: Tensor
    aux: Tensor | None
    counts: Ints
    deployed: Deployed | None

    @property
    def model(self) -> Deployed: ...


@dataclass(eq=False)
class Run:
    """A run as its callbacks see it."""

    rounds: int
    """The number of the last round to run."""
    title: str = ""
    """For people: FedVRA on digits."""
    task: str = ""
    algorithm: str = ""
    label: str = ""
    """Of the algorithm, as in tables."""
    seed: int = 0
    targets: tuple[Any, ...] = ()
    """Whose first round is reported."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the run was asked to be, by name, as far as it can be written down."""
    folder: Path | None = None
    """Where its files are; None where it leaves none."""
    records: list[Record] = field(default_factory=list)
    """One per finished round, including those before a resume."""
    experiment: Experiment | None = None
    server: Server | None = None
    simulator: Federation | None = None
    interrupted: Callable[[], bool] = lambda: False
    """Whether somebody outside wants the run to end with the round, to be resumed later."""
    stopped: str | None = None
    """Why a callback ended the run before its last round."""
    leaving: bool = False
    """Whether it was interrupted, as seen after the last round."""
    status: Status = "failed"
    message: str | None = None
    summary: RunSummary | None = None
    """The result of the run, once it has ended."""

    @classmethod
    def of(cls, federation: Federation, rounds: int, **more: Any) -> Run:
        """A run of the simulator."""
        e = federation.experiment
        about = {"algorithm": e.algorithm.name, "label": e.algorithm.label, "title": e.algorithm.label, "seed": e.seed}
        return cls(rounds, **{**about, "experiment": e, "server": federation.state, "simulator": federation, **more})

    @property
    def deploy(self) -> str:
        """Which model the run is for."""
        return "x0" if self.experiment is None else self.experiment.deployment.text()

    @property
    def name(self) -> str:
        """For trackers: FedVRA on mnist, seed 0."""
        return f"{self.label} on {self.task}, seed {self.seed}"

    @property
    def over(self) -> bool:
        """Whether the latest round was the last one."""
        return self.round >= self.rounds or self.stopped is not None or self.leaving

    @property
    def round(self) -> int:
        """How many rounds have been run."""
        return len(self.records) if self.server is None else self.server.round

    @property
    def federation(self) -> Federation:
        """The simulator with all there is to see: ``state``, ``clients``, ``omega``, ``solver``."""
        if self.simulator is None:
            raise UsageError(
                "this callback looks into the clients' state, which nobody but the simulator can: use it with fv.simulate."
            )
        return self.simulator

    def metric_names(self) -> list[str]:
        """What the run's own metrics are called in its records."""
        given = () if self.experiment is None else self.experiment.metrics
        found = dict.fromkeys(name for record in self.records[-1:] for name in numbers(record))
        return [
            name for name in found if any(re.fullmatch(rf"(model_)?(validation_)?{own}(_\w+)?", name) for own in given)
        ]

    def model(self) -> torch.nn.Module:
        """The model one would deploy, as it is now."""
        assert self.experiment is not None
        assert self.server is not None
        model = self.server.model.to("cpu")
        return module_of(self.experiment.problem, model.x, model.aux)


class Callback(Value, ABC):
    """Follows a run. ``raise fv.StopRun("why")`` in its first three methods ends the run.

    What it remembers between rounds is best read from ``run.records``: a resumed run then continues as if it had never
    stopped.

    >>> class Half(Callback):
    ...     def on_round(self, run, record):
    ...         record["half"] = record["round"] / run.rounds
    """

    afterwards: ClassVar[bool] = False
    """Whether it is told when all others have added what they have to add: the record is then in ``run.records``."""

    def check(self, experiment: Experiment) -> None:
        """Raise a UsageError where it does not fit the run: before anything is run or written."""

    def on_start(self, run: Run) -> None:
        """Before the first round of this process."""

    def on_round_start(self, run: Run) -> None:
        """As a round starts."""

    @abstractmethod
    def on_round(self, run: Run, record: Record) -> None:
        """When a round is over; what it writes into ``record`` is kept."""

    def on_stop(self, run: Run, record: Record) -> None:
        """Somebody ends the run with this round: ``record["stopped"]`` says why."""

    def on_end(self, run: Run) -> None:
        """When the run has ended, in whatever way ``run.status`` says."""
