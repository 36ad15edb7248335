"""What a problem is: the clients' cost functions f_i, and how to take local steps on them.

All a problem must have stands in :class:`Problem`. What only some have is a small class each (a model, a constraint on x, a
second block, exact gradients), and whoever needs it asks by the functions below, which say what holds for all the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeAlias

from torch import Tensor, nn
from typing_extensions import TypeVar

from fedvra.core.cohort import Ints
from fedvra.core.deploy import Deployed
from fedvra.core.errors import UsageError
from fedvra.core.objects import Value
from fedvra.local.protocol import Solver, SolverSettings
from fedvra.problems.oracle import Oracle

Data = TypeVar("Data", contravariant=True, default=Any)
"""What a problem takes as ``data=``: None where it carries its own."""
Parameter: TypeAlias = tuple[str, list[int], str, bool]
"""Name, shape, dtype, and whether it is trained."""


class Problem(Value, ABC, Generic[Data]):
    """The cost functions f_i of all clients; see ``Supervised`` and ``Quadratic``.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    >>> isinstance(costs, fv.Problem), len(costs.samples(None))
    (True, 4)
    """

    decay: float = 0.0
    """Weight decay: adds decay*x to every gradient. Kept apart because it is affine, so it costs nothing."""

    @abstractmethod
    def samples(self, data: Data) -> Ints:
        """n_i of every client; its length is N."""

    @abstractmethod
    def initial(self, seed: int) -> Tensor:
        """The flat start x0 [P]; its dtype is that of the whole run."""

    @abstractmethod
    def check(self, data: Data, settings: SolverSettings) -> None:
        """Raise UsageError where the problem does not fit the data."""

    @abstractmethod
    def solver(self, data: Data, settings: SolverSettings) -> Solver:
        """A solver for one worker process."""


class HasModel(ABC):
    """A problem whose x is the trainable part of an ``nn.Module``."""

    @abstractmethod
    def to_module(self, x_P: Tensor, aux_K: Tensor | None) -> nn.Module:
        """The model that x stands for."""

    @abstractmethod
    def initial_aux(self, seed: int) -> Tensor | None:
        """The statistics [K] that training changes besides x, at the start; None where there are none."""

    @property
    @abstractmethod
    def aux_is_local(self) -> bool:
        """Whether each client keeps its statistics to itself, instead of starting from the server's mean."""

    @abstractmethod
    def frozen(self, seed: int) -> dict[str, Tensor]:
        """What belongs to the model and is never trained, by name: made once, never sent, named in checkpoints by its hash."""

    @abstractmethod
    def parameters(self, seed: int) -> list[Parameter]:
        """All parameters of the model, those that are frozen too."""


class Constrained(ABC):
    """A problem whose x is confined to a set X."""

    @abstractmethod
    def project(self, x_P: Tensor) -> Tensor:
        """P_X, applied by the server in step 20."""


class HasSecondBlock(ABC, Generic[Data]):
    """A problem whose clients each have a block y_i that never leaves them; its solver is a ``StartsSecondBlock``."""

    @abstractmethod
    def y_width(self, data: Data) -> int:
        """The most numbers a client's y_i has."""


class HasRecords(ABC, Generic[Data]):
    """A problem whose f_i is a mean over records, and whose solver can bound the part of each (``fedvra.core.record_dp``)."""

    @abstractmethod
    def check_private(self, data: Data, settings: SolverSettings) -> None:
        """Raise UsageError where records cannot be told apart."""


class HasOracle(ABC, Generic[Data]):
    """A problem that can tell the f_i and their derivatives."""

    @abstractmethod
    def oracle(self, data: Data) -> Oracle:
        """The f_i with their derivatives, for those who look on: `fedvra check`, diagnostics."""


def statistics_of(problem: Problem, seed: int) -> Tensor | None:
    """The statistics at the start; None where there are none."""
    return problem.initial_aux(seed) if isinstance(problem, HasModel) else None


def parameters_of(problem: Problem, seed: int) -> list[Parameter]:
    """What a model has, by name; x itself where there is none."""
    if isinstance(problem, HasModel):
        return problem.parameters(seed)
    x = problem.initial(seed)
    return [("x", list(x.shape), str(x.dtype), True)]


def keeps_statistics_local(problem: Problem) -> bool:
    return isinstance(problem, HasModel) and problem.aux_is_local


def frozen_of(problem: Problem, seed: int) -> dict[str, Tensor]:
    """What is never trained, by name; empty without a model."""
    return problem.frozen(seed) if isinstance(problem, HasModel) else {}


def project(problem: Problem, x_P: Tensor) -> Tensor:
    """P_X(x); x itself where there is no constraint."""
    return problem.project(x_P) if isinstance(problem, Constrained) else x_P


def y_width_of(problem: Problem, data: Any) -> int:
    """The most numbers a client's y_i has; 0 for problems with one block."""
    return problem.y_width(data) if isinstance(problem, HasSecondBlock) else 0


def oracle_of(problem: Problem, data: Any) -> Oracle:
    """The f_i with their derivatives, or a sentence that there are none."""
    if isinstance(problem, HasOracle):
        return problem.oracle(data)
    raise UsageError(
        f"{type(problem).__name__} gives no exact gradients of f_i, so theory and diagnostics cannot look: derive it from "
        "fedvra.problems.HasOracle too."
    )


def require_records(problem: Problem, data: Any, settings: SolverSettings) -> None:
    """Refuse record-level privacy where there are no records to tell apart."""
    if not isinstance(problem, HasRecords):
        raise UsageError(
            f"privacy: {type(problem).__name__} does not take its steps record by record, so that the part of a single one "
            "has no bound: use fv.Supervised."
        )
    problem.check_private(data, settings)


def module_of(problem: Problem, x_P: Tensor, aux_K: Tensor | None) -> nn.Module:
    """The model that x stands for, or a sentence that there is none."""
    if isinstance(problem, HasModel):
        return problem.to_module(x_P, aux_K)
    raise UsageError(
        f"{type(problem).__name__} has no model: use history.x0, and history.y where there is a second block."
    )


def state_dict_of(problem: Problem, model: Deployed) -> dict[str, Tensor]:
    """A model under the names of its module; flat, as x0, where there is none."""
    if isinstance(problem, HasModel):
        return dict(problem.to_module(model.x, model.aux).state_dict())
    return {"x0": model.x}
