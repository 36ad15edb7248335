"""What a policy is: a setting that depends on the cohort, with a name to print and save it by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from fedvra.core.cohort import Cohort, Floats
from fedvra.core.errors import UsageError
from fedvra.core.objects import Value


class Policy(Value, ABC):
    """A function of the cohort with a name, so that settings print and save as what they are."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, cohort: Cohort) -> Floats | float:
        """The setting for each client of the cohort."""

    def __repr__(self) -> str:
        return self.name


class ForFedVRA(Policy, ABC):
    """What the algorithm works out itself."""

    def __call__(self, cohort: Cohort) -> Floats:
        raise UsageError("auto and remark1 are for FedVRA and FedVRA-U (remark1 for their a); give a number here.")
