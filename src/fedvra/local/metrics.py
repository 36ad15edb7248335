"""Figures of one's own: functions of all outputs and targets of the test data, or objects that accumulate.

An object that accumulates has ``update(outputs, targets)``, ``compute()`` and ``reset()``, as those of torchmetrics have. All
are given the outputs in the order of the samples, by one process: what they come to does not depend on the workers.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor, nn

from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.data import trees
from fedvra.local.protocol import Looked

MOST_BYTES = 1 << 30
"""Outputs and targets that are held at once for a function of all of them: 1 GiB."""
TAKEN = {
    "round",
    "cohort",
    "lost",
    "refused",
    "path",
    "path_reason",
    "seconds",
    "stopped",
    "diagnostics",
    "local_steps",
}
TAKEN |= {"clients", "unseen", "accuracy", "loss"}


class Accumulating(Protocol):
    """As the metrics of torchmetrics are."""

    def update(self, outputs: Any, targets: Any) -> Any: ...

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


Metric: TypeAlias = Callable[[Any, Any], Any] | Accumulating
Metrics: TypeAlias = Mapping[str, Metric]


@final
class RMSE(Value):
    """The root of the mean squared error, over all entries of the targets.

    >>> metric = RMSE()
    >>> metric.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    >>> round(metric.compute(), 4)
    1.4142
    """

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        outputs = outputs.reshape(targets.shape) if outputs.numel() == targets.numel() else outputs
        require(
            outputs.shape == targets.shape,
            f"RMSE compares outputs with targets of the same shape, got {list(outputs.shape)} and {list(targets.shape)}.",
        )
        self.sum += float((outputs.double() - targets.double()).square().sum())
        self.count += targets.numel()

    def compute(self) -> float:
        return math.sqrt(self.sum / self.count) if self.count else math.nan

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0


@final
class Perplexity(Value):
    """exp of the mean cross-entropy over the targets that are not ignored.

    Args:
        ignore_index: the mark of targets that are left out.
        classes_last: whether scores are [n, T, C], as language models give them, or [n, C, T], as torch's losses take them;
            None goes by the shape of the targets.

    >>> metric = Perplexity()
    >>> metric.update(torch.zeros(3, 5, 8), torch.ones(3, 5, dtype=torch.long))
    >>> round(metric.compute(), 4)
    8.0
    """

    def __init__(self, ignore_index: int = -100, classes_last: bool | None = None) -> None:
        self.ignore_index, self.classes_last = ignore_index, classes_last
        self.reset()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        last = outputs.shape[:-1] == targets.shape if self.classes_last is None else self.classes_last
        scores = outputs.movedim(-1, 1) if last and outputs.ndim > 2 else outputs
        ignored = self.ignore_index
        self.sum += float(nn.functional.cross_entropy(scores.double(), targets, ignore_index=ignored, reduction="sum"))
        self.count += int((targets != ignored).sum())

    def compute(self) -> float:
        return math.exp(self.sum / self.count) if self.count else math.nan

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0


@final
class Whole:
    """A function of everything, called when all is there."""

    def __init__(self, name: str, function: Callable[[Any, Any], Any]) -> None:
        self.name, self.function = name, function
        self.reset()

    def update(self, outputs: Any, targets: Any) -> None:
        leaves = [t for t in (*trees.leaves(outputs), *trees.leaves(targets)) if isinstance(t, Tensor)]
        self.bytes += sum(t.numel() * t.element_size() for t in leaves)
        require(
            self.bytes <= MOST_BYTES,
            f"the metric {self.name!r} is a function of all outputs, which take more than {MOST_BYTES >> 20} MB: give an "
            "object with update, compute and reset, such as those of torchmetrics, which sees them piece by piece.",
        )
        self.pieces.append((outputs, targets))

    def compute(self) -> Any:
        return self.function(*(_joined([piece[k] for piece in self.pieces], self.name) for k in (0, 1)))

    def reset(self) -> None:
        self.pieces: list[tuple[Any, Any]] = []
        self.bytes = 0


def check_metrics(metrics: Any) -> dict[str, Metric]:
    """The same, or a sentence about what is wrong with it."""
    require(
        isinstance(metrics, Mapping),
        f"metrics must map names to functions of outputs and targets, e.g. {{'f1': f1}}, got {type(metrics).__name__}.",
    )
    for name, metric in metrics.items():
        require(
            isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name) is not None,
            f"a metric's name is a word such as f1, got {name!r}.",
        )
        require(
            name not in TAKEN and not name.startswith(("test_", "train_", "validation_", "bytes_", "seconds_")),
            f"{name!r} is a name that records use themselves: call the metric otherwise.",
        )
        what = f"the class {metric.__name__}" if isinstance(metric, type) else repr(metric)
        require(
            not isinstance(metric, type) and (_accumulates(metric) or callable(metric)),
            f"the metric {name!r} must be a function of outputs and targets, or an object with update, compute and reset such "
            f"as those of torchmetrics; got {what}.",
        )
    return dict(metrics)


def compute(metrics: Metrics, looked: Iterable[Looked]) -> dict[str, float]:
    """What they come to over these pieces, in their order; the user's objects stay as they were."""
    made: dict[str, Accumulating] = {
        name: copy.deepcopy(metric) if _accumulates(metric) else Whole(name, metric)  # type: ignore[arg-type, misc]
        for name, metric in metrics.items()
    }
    for metric in made.values():
        metric.reset()
    with torch.no_grad():
        for piece in looked:
            for outputs, targets in piece.pairs:
                for metric in made.values():
                    metric.update(outputs, targets)
        found: dict[str, float] = {}
        for name, metric in made.items():
            found.update(_numbers(name, metric.compute()))
    return found


def _accumulates(metric: Any) -> bool:
    return all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset"))


def _joined(pieces: list[Any], name: str) -> Any:
    """All pieces as one."""
    if not pieces:
        return torch.empty(0)
    try:
        return trees.concatenated(pieces)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"the metric {name!r} is a function of all outputs, and batches of this model have outputs of several shapes: give "
            "an object with update, compute and reset, which sees them batch by batch."
        ) from error


def _numbers(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {key: each for inner, part in value.items() for key, each in _numbers(f"{name}_{inner}", part).items()}
    try:
        return {name: float(value)}
    except (TypeError, ValueError, RuntimeError):
        shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
        raise UsageError(
            f"the metric {name!r} must come to one number, or a dict of numbers, got {type(value).__name__}{shape}."
        ) from None
