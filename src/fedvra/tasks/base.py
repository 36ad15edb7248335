"""What a task is. Torch is not imported here: naming a task must not cost that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fedvra.core.objects import Value
from fedvra.core.registry import Registry

if TYPE_CHECKING:
    from fedvra.data.dataset import FederatedData
    from fedvra.problems.base import Problem
    from fedvra.runs.options import RunConfig

Make: TypeAlias = "Callable[[RunConfig], tuple[Problem, Any]]"
"""The clients' cost functions, and the data they are over (None where a problem carries its own)."""


@dataclass(frozen=True)
class Task(Value):
    """What a name on the command line stands for, and the settings under which it is usually run.

    Args:
        description: one line for people.
        make: a function of a run's options (``options.clients``, ``options.split``, ``options.seed``, ...) that returns the
            problem and its data.
        defaults: options of ``fedvra run`` that suit the task; what is not named is as in the paper's MNIST experiment.
        settings: hyper-parameters by algorithm that suit it better than the algorithm's own defaults.
        metrics: figures of its own, e.g. ``{"f1": f1}``, as for :func:`fedvra.simulate`; or a function that makes them.

    A task in a file of yours is run as ``fedvra run path/to/mine.py:NAME``.

    >>> def make(options):
    ...     rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    ...     data = fv.split((rows, rows[:, :1]), options.split, clients=options.clients, seed=options.seed)
    ...     return fv.Supervised(partial(torch.nn.Linear, 4, 1), loss=torch.nn.functional.mse_loss), data
    >>> import fedvra as fv, numpy as np, torch
    >>> from functools import partial
    >>> task = fv.Task("a line through a cloud", make, defaults={"clients": 6, "split": "iid", "lr": 0.1})
    """

    description: str
    make: Make
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``fedvra run`` that differ from the paper's MNIST experiment."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hyper-parameters by algorithm that differ from the algorithm's own defaults."""
    metrics: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    """Figures of its own in the records, by name: as ``metrics`` of ``fv.simulate``."""

    def figures(self) -> Mapping[str, Any]:
        """The metrics, made where that was left for later."""
        return self.metrics() if callable(self.metrics) else self.metrics


TASKS: Registry[Task] = Registry("task", "fedvra.tasks", group="fedvra.tasks")


def partitioned(dataset: str, config: RunConfig) -> FederatedData:
    """The data set of that name, normalised and partitioned among the clients as the options say."""
    from fedvra.data.dataset import split
    from fedvra.data.partitions import parse_partition
    from fedvra.data.sources import load

    partition = parse_partition(config.split)  # first: a slip there should not wait for a download
    loaded = load(dataset, config.data)
    transform = loaded.transform.normalized(config.normalize)
    return split(
        loaded,
        partition,
        clients=config.clients,
        seed=config.seed,
        transform=transform,
        **set_aside(config),
    )


def set_aside(config: RunConfig) -> dict[str, Any]:
    """What the options have ``split`` set aside."""
    return {"validation": config.validation, "test_share": config.test_share, "unseen": config.unseen}


def classification(dataset: str) -> Make:
    """The usual task: a data set of that name, split by label, a model by name, cross-entropy and weight decay."""

    def make(config: RunConfig) -> tuple[Problem, Any]:
        from functools import partial

        from fedvra.models import MODELS
        from fedvra.problems.supervised import Supervised

        make_model, data = MODELS.get(config.model), partitioned(dataset, config)
        shape, classes = tuple(data.dataset.inputs.shape[1:]), data.dataset.classes or 1
        return Supervised(partial(make_model, shape, classes), weight_decay=config.weight_decay), data

    return make
