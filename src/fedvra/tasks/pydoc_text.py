"""A character language model on the reference texts inside Python (``help("assignment")``): each is of one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedvra.tasks.base import TASKS, Task, set_aside

if TYPE_CHECKING:
    from fedvra.data.dataset import Dataset
    from fedvra.problems.base import Problem
    from fedvra.runs.options import RunConfig

ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
"""Printable ASCII; whatever else there is counts as one more symbol, so that the model is the same for every Python."""
WINDOW, STRIDE, MOST = 40, 8, 4000
"""Characters to read before one is to be said; how far apart samples are; characters of a topic that are used."""
EVERY = 10
"""The last tenth of each text is for testing; training samples that share characters with it are left out."""


def texts() -> dict[str, str]:
    """Topic to text, those long enough for a dozen samples."""
    from pydoc_data.topics import topics

    found = {name: text[:MOST] for name, text in sorted(topics.items())}
    return {name: text for name, text in found.items() if len(text) >= WINDOW + 12 * STRIDE}


def dataset() -> tuple[Dataset, list[str]]:
    """Samples (40 characters, the next one), and the topic of each training sample."""
    import numpy as np
    import torch

    from fedvra.data.dataset import Dataset

    places = {symbol: k for k, symbol in enumerate(ALPHABET)}
    rows: dict[bool, list[Any]] = {True: [], False: []}
    owners: list[str] = []
    margin = -(-WINDOW // STRIDE)  # samples that share characters with a test sample
    for topic, text in texts().items():
        codes = np.array([places.get(symbol, len(ALPHABET)) for symbol in text])
        windows = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)[::STRIDE]
        tests = np.arange(len(windows)) * EVERY // len(windows) == EVERY - 1  # the end of a text
        first = int(tests.argmax())
        rows[True].append(windows[tests])
        rows[False].append(windows[: max(1, first - margin)])
        owners += [topic] * len(rows[False][-1])
    train, test = (torch.from_numpy(np.concatenate(rows[kind])) for kind in (False, True))
    made = Dataset("pydoc", train[:, :-1], train[:, -1], test[:, :-1], test[:, -1], classes=len(ALPHABET) + 1)
    return made, owners


def make(config: RunConfig) -> tuple[Problem, Any]:
    from functools import partial

    from fedvra.data.dataset import split
    from fedvra.data.partitions import ByColumn, parse_partition
    from fedvra.models import MODELS
    from fedvra.problems.supervised import Supervised

    text, owners = dataset()
    partition = ByColumn(owners) if config.split == NATURAL else parse_partition(config.split)
    data = split(text, partition, clients=config.clients, seed=config.seed, **set_aside(config))
    model = partial(MODELS.get(config.model), (WINDOW,), text.classes or 1)
    return Supervised(model, weight_decay=config.weight_decay), data


def _perplexity() -> dict[str, Any]:
    from fedvra.local.metrics import Perplexity

    return {"perplexity": Perplexity()}


NATURAL = "topics"

TASKS.add(
    "pydoc",
    Task(
        "a character language model on Python's reference texts, each client with topics of its own",
        make,
        metrics=_perplexity,
        defaults={
            "clients": 20,
            "cohort": 5,
            "rounds": 30,
            "epochs": 1,
            "batch_size": 32,
            "lr": 0.5,
            "weight_decay": 0.0,
            "model": "lstm",
            "split": NATURAL,
            "targets": (20, 30, 40),
        },
    ),
)
