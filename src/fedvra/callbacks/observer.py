"""Looking into the simulator, as nobody else can: observers add to a round's record and change nothing."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.runs.files import Record

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation


class Observer(Callback):
    """A callback that sees the federation before and after each round.

    Write a subclass with two methods and pass an object of it as ``callbacks=[...]``. It sees everything in the simulator and
    must not change it. ``federation.state`` holds x0 and lam, ``.clients`` the clients' duals, ``.omega`` the weights.

    >>> import torch, fedvra as fv
    >>> class Distance(fv.Observer):
    ...     def before(self, federation):
    ...         return federation.state.x0.clone()
    ...     def after(self, federation, seen):
    ...         return {"moved": float((federation.state.x0 - seen).norm())}
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    >>> history = fv.simulate(
    ...     fv.FedAvg(), problem=costs, sampler=fv.Full(), work=fv.Steps(1), lr=0.5, rounds=2, callbacks=[Distance()]
    ... )
    >>> [round(record["moved"], 3) for record in history.metrics]
    [0.707, 0.354]
    """

    _forgets: ClassVar[tuple[str, ...]] = ("_seen",)
    _seen: Any = None

    @abstractmethod
    def before(self, federation: Federation) -> Any:
        """Called as a round starts; what it returns is handed to ``after``."""

    @abstractmethod
    def after(self, federation: Federation, seen: Any) -> dict[str, Any]:
        """Called when the round is over (its number is then ``federation.state.round``); returns what to add to its record."""

    def on_round_start(self, run: Run) -> None:
        object.__setattr__(self, "_seen", self.before(run.federation))  # of this round alone: no part of the value

    def on_round(self, run: Run, record: Record) -> None:
        record.update(self.after(run.federation, self._seen))

    def on_end(self, run: Run) -> None:
        vars(self).pop("_seen", None)
