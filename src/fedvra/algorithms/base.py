"""What an algorithm is: hyper-parameters and the row of coefficients they give. The equations are in ``fedvra.core.rule``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort, Floats, Setting, resolve
from fedvra.core.deploy import X0, Deploy
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.core.registry import Registry

Everyone = Callable[[], Cohort]
"""All N clients as they would be this round. Costs O(N), so it is asked for only where gamma differs between clients."""


@dataclass(frozen=True)
class Protocol:
    """How many vectors of the model's size one client sends and receives in a round."""

    up: int = 1
    down: int = 1


@dataclass(frozen=True)
class Algorithm(Value, ABC):
    """A frozen dataclass whose fields are the hyper-parameters, and one method that gives its row of the table.

    Adding one: copy ``fedavg.py`` into this folder (or register the class through the entry-point group
    ``fedvra.algorithms``); the command line, the docs' table and the test grid find it by its ``name``.

    >>> import fedvra as fv
    >>> fv.FedDyn(alpha=0.1).name, isinstance(fv.FedDyn(), fv.Algorithm)
    ('feddyn', True)
    """

    name: ClassVar[str]
    """On the command line."""
    label: ClassVar[str]
    """In tables and plots."""
    reference: ClassVar[str]
    suits: ClassVar[str] = ""
    """When to choose it, in a sentence or two: on its page and in ``fedvra algorithms --json``."""
    original: ClassVar[Protocol] = Protocol()
    """Vectors sent by the published protocol; what is sent here follows from the coefficients."""
    everyone_takes_part: ClassVar[bool] = False
    """True where the method is defined for full participation only."""
    own_anchor: ClassVar[bool] = False
    """True where each client keeps an x0 of its own between communications (FedPD)."""
    converges_exactly: ClassVar[bool] = False
    """True where, on a smooth convex problem with exact gradients, x0 tends to the minimiser whatever the heterogeneity."""

    deploy: ClassVar[Deploy] = X0
    """Which model a run is for, unless it says so itself; the evidence is in docs/deploy.md."""

    @abstractmethod
    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        """The row of the table for the clients of this round."""


REGISTRY: Registry[type[Algorithm]] = Registry("algorithm", "fedvra.algorithms", group="fedvra.algorithms")

A = TypeVar("A", bound=Algorithm)


def register(cls: type[A]) -> type[A]:
    """Class decorator: register an algorithm under its ``name``, for the command line and config files.

    >>> import fedvra as fv
    >>> fv.register(fv.FedAvg) is fv.FedAvg  # as a decorator: @fv.register above the class
    True
    """
    REGISTRY.add(cls.name, cls)
    return cls


def beta(gamma: Setting, everyone: Everyone) -> float:
    """beta = 1 / sum_{i=1}^N omega_i*gamma_i over all clients; 0 where gamma is 0 everywhere, for then lam is 0 as well."""
    if isinstance(gamma, (int, float)):
        total = float(gamma)
    else:
        total = float(np.dot(everyone().omega, resolve(gamma, everyone(), "gamma")))
    return 1.0 / total if total > 0 else 0.0


def relative_penalty(gamma: Setting, cohort: Cohort, everyone: Everyone) -> Floats:
    """beta*gamma_i: exactly 1 where gamma is one number for all, and in the limit of gamma = 0 everywhere."""
    factor = 0.0 if isinstance(gamma, (int, float)) else beta(gamma, everyone)
    return factor * resolve(gamma, cohort, "gamma") if factor else ones(cohort)


def zeros(cohort: Cohort) -> Floats:
    return np.zeros(len(cohort))


def ones(cohort: Cohort) -> Floats:
    return np.ones(len(cohort))


def non_negative(setting: Setting, name: str) -> None:
    """Refuse a negative number or table; what functions return is checked in each round."""
    if not callable(setting):
        require(bool(np.all(_table(setting, name) >= 0)), f"{name} must be >= 0, got {setting}.")  # also refuses NaN


def positive(setting: Setting, name: str) -> None:
    """Refuse zero as well: where 1/gamma is part of the method."""
    if not callable(setting):
        require(bool(np.all(_table(setting, name) > 0)), f"{name} must be > 0, got {setting}.")


def _table(setting: Setting, name: str) -> Floats:
    try:
        return np.asarray(setting, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} must be a number, a table of numbers, a policy or a function of the cohort, got {setting!r}; "
            "what the command line takes as text, fedvra.policies.parse_setting reads."
        ) from None
