"""Semi-supervised classification: nine of ten labels are hidden (``digits-ssl``, ``mnist-ssl``, ``cifar10-ssl``).

Each has two references under supervision, with the same model and as many local steps per round: ``NAME-labelled`` knows
only the labels that are not hidden, ``NAME-all`` knows them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fedvra.tasks.base import TASKS, Make, Task, partitioned
from fedvra.tasks.cifar10 import PAPERS

if TYPE_CHECKING:
    from fedvra.problems.base import Problem
    from fedvra.runs.options import RunConfig

Known = Literal["some", "labelled", "all"]


def semisupervised(dataset: str, known: Known) -> Make:
    """The data set with hidden labels; what is known of them decides the problem."""

    def make(config: RunConfig) -> tuple[Problem, Any]:
        from functools import partial

        from fedvra.models import MODELS
        from fedvra.problems.semisupervised import SemiSupervised

        make_model, data = MODELS.get(config.model), partitioned(dataset, config)
        model = partial(make_model, tuple(data.dataset.inputs.shape[1:]), data.dataset.classes or 1)
        problem = SemiSupervised(model, weight_decay=config.weight_decay, seed=config.seed)
        if known == "some":
            return problem, data
        return problem.supervised(), problem.labelled_part(data) if known == "labelled" else data

    return make


def add(
    dataset: str, description: str, defaults: Mapping[str, Any], steps: int, settings: Mapping[str, Mapping[str, Any]]
) -> None:
    """The task and its two references; ``steps`` is what the task's epochs come to on its own clients."""
    name = f"{dataset}-ssl"
    TASKS.add(name, Task(description, semisupervised(dataset, "some"), {"algorithm": "fedvra-u", **defaults}, settings))
    few = Task(
        f"{name} with its labelled tenth alone", semisupervised(dataset, "labelled"), {**defaults, "steps": steps}
    )
    every = Task(f"{name} with all labels", semisupervised(dataset, "all"), {**defaults, "steps": steps})
    TASKS.add(f"{name}-labelled", few)
    TASKS.add(f"{name}-all", every)


add(
    "digits",
    "digits with nine of ten labels hidden; takes seconds",
    # 20 clients hold 70 samples each, so that seven of them keep a label.
    {"rounds": 80, "clients": 20, "cohort": 5, "batch_size": 16, "lr": 0.05, "targets": (80, 85, 90, 95)},
    steps=10,
    settings={"fedvra-u": {"gamma": 0.5, "a": 2}},
)
add(
    "mnist",
    "MNIST with nine of ten labels hidden; the paper's third experiment",
    {"batch_size": 32, "targets": (90, 94, 95, 96)},
    steps=38,
    settings={"fedvra-u": {"gamma": 0.5, "a": 5, "d": 15}},
)
add(
    "cifar10",
    "CIFAR-10 with nine of ten labels hidden; the paper's fourth experiment",
    {"model": "cnn", "normalize": PAPERS, "rounds": 200, "batch_size": 32, "targets": (40, 50, 60)},
    steps=32,
    settings={"fedvra-u": {"gamma": 0.1, "a": 7, "d": 15}},
)
