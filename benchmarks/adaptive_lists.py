"""What `auto` is designed on and what it is judged by: two lists that share neither a task nor a seed.

The lists were fixed before the rule was looked at again. Constants may be chosen on ``DESIGN`` alone. ``HELD_OUT`` is run once,
when the rule is settled, with seeds that were used for nothing before; what comes out is what docs/adaptive-study.md reports.

A task's targets are accuracies in percent, or for quadratics orders of magnitude by which the gap to the minimum has fallen. A
run ends at its last target. Rounds count for the deployed model: the mean of the clients' models for FedVRA, for every rival
the better of that and x0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trial:
    """A federation on which rounds to some targets are counted."""

    name: str
    rounds: int
    """At most."""
    targets: tuple[float, ...]
    seeds: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    """Of ``fedvra run``; for quadratics those of ``adaptive.quadratic``."""

    @property
    def quadratic(self) -> bool:
        return "task" not in self.options


NUMBERS = (90.0, 95.0, 97.0)
"""Targets on digits and MNIST."""
CLOTHES = (75.0, 80.0, 83.0)
"""Targets on Fashion-MNIST."""

DESIGN = (
    Trial("digits", 60, NUMBERS, (100, 101, 102), {"task": "digits"}),
    Trial("digits, lr 0.2", 60, NUMBERS, (100, 101, 102), {"task": "digits", "lr": 0.2}),
    Trial("digits, linear", 60, (80, 90, 92), (100, 101, 102), {"task": "digits", "model": "linear"}),
    Trial("digits, HLU", 60, NUMBERS, (100, 101, 102), {"task": "digits", "epochs": "1-5"}),
    Trial("digits, 2 of 50", 100, NUMBERS, (100, 101, 102), {"task": "digits", "cohort": 2}),
    Trial("digits, 50 of 50", 30, NUMBERS, (100, 101, 102), {"task": "digits", "cohort": 50}),
    Trial("digits, 50 of 50, lr 0.2", 30, NUMBERS, (100, 101, 102), {"task": "digits", "cohort": 50, "lr": 0.2}),
    Trial("digits, lr 0.5", 40, (80, 90, 95), (100, 101, 102), {"task": "digits", "lr": 0.5}),
    Trial(
        "digits, 5 epochs", 60, NUMBERS, (100, 101, 102), {"task": "digits", "epochs": "5", "split": "dirichlet:0.05"}
    ),
    Trial("quadratics, mild", 250, (2, 4), (100, 101), {"low": 0.5, "high": 5, "steps": 10, "lr": 0.02}),
    Trial("quadratics, ill-conditioned", 250, (2, 4), (100, 101), {"low": 0.01, "high": 10, "steps": 50, "lr": 0.02}),
    Trial("quadratics, stiff", 250, (2, 4), (100, 101), {"low": 0.1, "high": 50, "steps": 10, "lr": 0.01}),
    Trial("MNIST", 110, NUMBERS, (100, 101), {"task": "mnist"}),
    Trial("MNIST, HLU", 110, NUMBERS, (100,), {"task": "mnist", "epochs": "1-5"}),
    Trial("MNIST, IID", 110, NUMBERS, (100,), {"task": "mnist", "split": "iid"}),
)

HELD_OUT = (
    Trial("Fashion-MNIST", 80, CLOTHES, (902, 903), {"task": "fashion-mnist"}),
    Trial("Fashion-MNIST, HLU", 80, CLOTHES, (902, 903), {"task": "fashion-mnist", "epochs": "1-5"}),
    Trial(
        "Fashion-MNIST, linear, shards:2",
        80,
        (60, 70, 75),
        (902, 903),
        {"task": "fashion-mnist", "model": "linear", "split": "shards:2"},
    ),
    Trial("MNIST, lr 0.03", 80, NUMBERS, (902, 903), {"task": "mnist", "lr": 0.03}),
    Trial("MNIST, lr 0.1", 60, NUMBERS, (902, 903), {"task": "mnist", "lr": 0.1}),
    Trial("MNIST, 5 of 100", 110, NUMBERS, (902, 903), {"task": "mnist", "cohort": 5}),
    Trial("MNIST, 20 of 1000", 150, (80, 90, 95), (902, 903), {"task": "mnist", "clients": 1000, "cohort": 20}),
    Trial(
        "tumours, quantity skew",
        60,
        (90, 95, 97),
        (902, 903),
        {"task": "breast-cancer", "clients": 50, "cohort": 10, "split": "quantity:power=1.5"},
    ),
    Trial("CIFAR-10", 60, (40, 50), (902,), {"task": "cifar10"}),
)

PENALTY = {"gamma": 0.1, "d": "1/p"}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "a = 5": ("fedvra", {**PENALTY, "a": 5}),
    "a = 10": ("fedvra", {**PENALTY, "a": 10}),
    "a = 20": ("fedvra", {**PENALTY, "a": 20}),
    "FedDyn": ("feddyn", {"alpha": 0.1}),
    "SCAFFOLD": ("scaffold", {}),
    "FedAvg": ("fedavg", {}),
    "FedExP": ("fedexp", {}),
    "FedADMM-InSa": ("fedadmm-insa", {}),
}
"""By the name in tables: the algorithm and its settings. FedVRA has the paper's gamma, and the best a of three on each task."""

WITHOUT: dict[str, tuple[str, str]] = {
    "nothing left out": ("", ""),
    "no cut where uploads grew": ("", "uploads grew"),
    "no growth": ("", "uploads are the smallest so far"),
    "the training loss is not looked at": ("grown_in_vain=2", ""),
    "n = 1 in large cohorts too": ("memory=0", ""),
    "a memory of 20 rounds": ("memory=20", ""),
    "no bound for few clients": ("stale=1e9", ""),
    "sigma up to 3": ("strongest=3", ""),
    "begun with the largest sigma": ("first=2", ""),
    "uploads are not averaged": ("move_weight=1e9", ""),
    "any loss above the lowest counts": ("regained=0", ""),
}
"""What an ablation changes, one at a time: a constant of ``fv.Auto``, or a line of the table of rules, left out."""
