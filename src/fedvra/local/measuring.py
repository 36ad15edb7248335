"""A model's accuracy and loss on data, piece by piece."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.data import trees
from fedvra.local.client_batches import ClientBatches
from fedvra.local.loan import Batch
from fedvra.local.protocol import Evaluation, Looked, Samples
from fedvra.local.replay import CannotReplayError
from fedvra.local.replay.products import LinearLayers, onednn_is_faster
from fedvra.local.replay.record import refuse_module
from fedvra.local.subject import Subject

TEST_PART = 1000
"""Test samples in a task; fixed, so that sums come out the same however many workers share them."""
TEST_BATCH = 100
"""Images that convolutions see at once: with 1000 the activations leave the caches (cnn on CIFAR-10: 1.8 x slower)."""
IGNORED = -100
"""Torch's own mark for targets that its losses leave out."""

Counted = Callable[[Any], float]
"""From targets to how many entries the loss is a mean over."""


class Measure:
    """Looks at a subject in evaluation mode."""

    def __init__(self, subject: Subject, feed: ClientBatches, convolves: bool, counted: Counted | None) -> None:
        self.subject, self.feed = subject, feed
        self.counted = counted or functools.partial(entries_counted, ignored=ignored_by(subject.loss))
        self._at_once = TEST_BATCH if convolves or not feed.stacks else TEST_PART
        self._products = _products(subject)
        self.test_samples = feed.data.dataset.test_samples
        self.test_parts = -(-self.test_samples // TEST_PART)

    def test(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        """One part of the test data."""
        start, stop = part * TEST_PART, min((part + 1) * TEST_PART, self.test_samples)
        pieces = [slice(k, min(k + self._at_once, stop)) for k in range(start, stop, self._at_once)]
        dtype = self.subject.spec.dtype
        return self._measure(x_P, aux_K, self.feed.test_batches(pieces, dtype))

    def look(self, x_P: Tensor, aux_K: Tensor | None, samples: Samples, outputs: bool) -> Looked:
        """Any samples; in the same pieces as :meth:`test` where they are a stretch of the test data."""
        rows, dtype = samples.rows, self.subject.spec.dtype
        pieces = [rows[k : k + self._at_once] for k in range(0, len(rows), self._at_once)]
        fed = self.feed.test_batch if samples.test else self.feed.batch
        kept: list[tuple[Any, Any]] = []
        sums = self._measure(x_P, aux_K, [fed(piece, dtype=dtype) for piece in pieces], kept if outputs else None)
        return Looked(sums, tuple((trees.map(_on_cpu, _scores(o)), trees.map(_on_cpu, t)) for o, t in kept))

    def loss(self, x_P: Tensor, rows: Ints) -> float:
        """The mean loss over these samples of the training data."""
        dtype = self.subject.spec.dtype
        pieces = [rows[k : k + self._at_once] for k in range(0, len(rows), self._at_once)]
        found = self._measure(x_P, None, self.feed.ahead(lambda piece: self.feed.batch(piece, dtype=dtype), pieces))
        return found.loss / max(found.samples, 1)

    @torch.no_grad()
    def _measure(
        self, x_P: Tensor, aux_K: Tensor | None, pieces: Iterable[Batch], kept: list[tuple[Any, Any]] | None = None
    ) -> Evaluation:
        subject = self.subject
        outputs, targets = [], []
        with subject.evaluating(x_P, aux_K), self._products():
            for inputs, target in pieces:
                outputs.append(subject.outputs(inputs))
                targets.append(target)
        if all(isinstance(t, Tensor) for t in (*outputs, *targets)) and self.feed.stacks:
            whole = [(torch.cat(outputs), torch.cat(targets))]
        else:
            whole = list(zip(outputs, targets, strict=True))
        if kept is not None:
            kept += whole
        loss = correct = seen = 0.0
        for output, target in whole:
            entries = self.counted(target)
            if entries:
                loss += float(subject.loss(output, target)) * entries
            correct += _correct(output, target)
            seen += entries
        return Evaluation(correct, loss, seen)


def _products(subject: Subject) -> Callable[[], AbstractContextManager[Any]]:
    """How large products are computed meanwhile. Code that torch compiled, and what else a recording refuses, is left alone."""
    try:
        refuse_module(subject.module, subject.loss)
    except CannotReplayError:
        return nullcontext
    return LinearLayers if onednn_is_faster() else nullcontext


def _scores(outputs: Any) -> Any:
    """What a metric is given: the scores, where outputs come with more (as in transformers)."""
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def _on_cpu(t: Tensor) -> Tensor:
    return t.detach().cpu()


def ignored_by(loss: Any) -> int:
    """The target that the loss leaves out."""
    given = getattr(loss, "keywords", {}).get("ignore_index", getattr(loss, "ignore_index", IGNORED))
    return int(given)


def entries_counted(targets: Any, ignored: int = IGNORED) -> float:
    """How many entries the loss averages over: those that it does not ignore, where targets are labels, else the samples.

    >>> entries_counted(torch.tensor([[1, 2], [3, -100]])), entries_counted(torch.zeros(2, 5))
    (3, 2)
    """
    if isinstance(targets, Tensor) and targets.dtype == torch.int64:
        return int((targets != ignored).sum())
    return trees.count(targets)


def _correct(outputs: Any, targets: Any) -> float:
    """How many samples the largest output gets right; NaN where outputs are no scores of classes."""
    scores = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    labels = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
    if labels and isinstance(scores, Tensor) and scores.ndim == 2:
        return float((scores.argmax(1) == targets).sum())
    return float("nan")
