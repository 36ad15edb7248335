"""A picture of the partition: which client has which classes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError
from fedvra.core.files import replace_durably

if TYPE_CHECKING:
    from fedvra.data.dataset import FederatedData


MANY = 200
"""Above this many clients their order says nothing and the bars touch."""


def class_counts(data: FederatedData) -> Ints:
    """How many samples of each class each client holds, [N, K]; K = 1 where the targets are not labels.

    Samples whose label is to be ignored belong to no class.
    """
    owners = np.repeat(np.arange(data.clients), data.sizes)
    classes, every = data.dataset.classes, data.dataset.labels
    if classes is None or every is None:
        return data.sizes[:, None]
    labels = every[data.trained]
    owners, labels = owners[labels >= 0], labels[labels >= 0]
    return np.bincount(owners * classes + labels, minlength=data.clients * classes).reshape(data.clients, classes)


def picture(data: FederatedData, path: str | Path) -> Path:
    """Draw one stacked bar per client, one colour per class, into a PNG; returns its path."""
    # Imported here because matplotlib takes longer to import than a small run takes. Figure alone draws with Agg and
    # leaves pyplot's global state, and whatever backend the caller chose, untouched.
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = class_counts(data)
    clients, classes = counts.shape
    crowded = clients > MANY
    if crowded:  # bars of a pixel or two only show something when alike stand together
        counts = counts[np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))]
    figure = Figure(figsize=(min(16.0, max(6.0, clients / 8)), 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    half = 0.5 if crowded else 0.42
    tops = np.cumsum(counts, axis=1)
    for k, colour in enumerate(_colours(classes)):
        # One collection per class: thousands of separate rectangles would take seconds.
        bars = np.flatnonzero(counts[:, k])
        x = np.stack([bars - half, bars + half, bars + half, bars - half], axis=1)
        low, high = tops[bars, k] - counts[bars, k], tops[bars, k]
        corners = np.stack([x, np.stack([low, low, high, high], axis=1)], axis=2)
        axes.add_collection(PolyCollection(list(corners), facecolor=colour, linewidth=0, label=_label(data, k)))
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(0, tops[:, -1].max() * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("clients, sorted by their main class" if crowded else "client")
    axes.set_ylabel("samples")
    axes.set_title(f"{data.dataset.name}: {len(data.trained):,} samples on {clients:,} clients", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < classes <= 20:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, title="class")
    return _write(figure, Path(path))


def _colours(classes: int) -> Any:
    from matplotlib import colormaps

    if classes <= 10:
        return colormaps["tab10"](np.arange(classes))
    if classes <= 20:
        return colormaps["tab20"](np.arange(classes))
    return colormaps["turbo"](np.linspace(0, 1, classes))


def _label(data: FederatedData, k: int) -> str:
    names = data.dataset.class_names
    return names[k] if k < len(names) else str(k)


def _write(figure: Any, path: Path) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    try:
        replace_durably(path, buffer.getvalue())
    except OSError as error:
        raise UsageError(
            f"the picture could not be written to {path} ({error.strerror}); choose another place."
        ) from None
    return path
