"""By what a run knows its model, loss and data again, which no config file can hold.

Names, shapes, dtypes and ``requires_grad`` of the parameters, who holds which samples, and some rows of the data are compared
as they are. What a model or a loss computes shows in two numbers on a small batch at the x0 of a checkpoint, where a run that
resumes has to find them again, up to what another processor may change in the last digits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.errors import UsageError, require
from fedvra.core.streams import Purpose, stream
from fedvra.data import trees
from fedvra.data.dataset import Dataset, FederatedData
from fedvra.engines.experiment import Experiment
from fedvra.problems.base import oracle_of, parameters_of
from fedvra.problems.oracle import Point

ROWS = 64
"""Samples that are looked at."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""How far two processors may differ in a loss or the norm of a gradient, relatively."""
COARSE = 5e-2
"""The same in any other arithmetic."""

Facts = Mapping[str, Any]


def facts(experiment: Experiment) -> dict[str, Any]:
    """What is written down when a run begins: plain values, the same for the same model and data on every machine."""
    e = experiment
    found: dict[str, Any] = {
        "problem": type(e.problem).__name__,
        "parameters": [[*each] for each in parameters_of(e.problem, e.seed)],
    }
    if isinstance(e.data, FederatedData):
        found["samples"] = len(e.data.dataset)
        found["rows"] = _rows(e.data.dataset, test=False)
        found["test samples"] = e.data.dataset.test_samples
        found["test rows"] = _rows(e.data.dataset, test=True) if e.data.dataset.test_samples else None
        found["split"] = _digest([e.data.offsets.tobytes(), e.data.indices.tobytes()])
    return found


def short(found: Facts) -> str:
    """A name for model and data that runs of several seeds share, though each may partition or draw its own samples."""
    kept = ("problem", "parameters", "samples", "test samples")
    return _digest([repr([found.get(name) for name in kept]).encode()])[:12]


def probe(experiment: Experiment, total: int, x0: Tensor, aux: Tensor | None) -> dict[str, float] | None:
    """Cost and norm of its gradient on a few samples at x0; None for a problem that cannot tell."""
    try:
        oracle = oracle_of(experiment.problem, experiment.data)
        cost, slope = oracle.probe(Point(x0, aux), total, ROWS)
    except UsageError:
        return None
    # fewer digits than there are: neither a checkpoint's bytes nor a comparison need the last ones
    return {"cost": float(f"{cost:.6g}"), "slope": float(f"{slope:.6g}")} if math.isfinite(cost + slope) else None


def require_same(stored: Facts, now: Facts, where: Any) -> None:
    """Refuse to resume with another model, data set or partition; says what differs."""
    difference = next(_differences(stored, now), None)
    require(difference is None, f"{where} holds a run with {difference}: {_way_out(where)}.")


def require_same_probe(
    stored: Mapping[str, float] | None, now: Mapping[str, float] | None, dtype: torch.dtype, where: Any
) -> None:
    """Refuse to resume where model and loss no longer compute what they did."""
    if stored is None or now is None:
        return
    tolerance = TOLERANCES.get(dtype, COARSE)
    for name, words in (("cost", "the loss"), ("slope", "the norm of the gradient")):
        then, here = stored[name], now[name]
        require(
            abs(then - here) <= tolerance * max(abs(then), abs(here), 1e-6),
            f"{where} holds a run with another loss, model or data: on the same {ROWS} samples and with the weights of its "
            f"checkpoint {words} was {then:g} and is now {here:g}; {_way_out(where)}.",
        )


def _way_out(where: Any) -> str:
    return f"name another folder than {where}, or put things back as they were"


def _differences(stored: Facts, now: Facts) -> Iterator[str]:
    if stored["problem"] != now["problem"]:
        yield f"another problem, {stored['problem']} where this one has {now['problem']}"
    yield from _parameters(stored["parameters"], now["parameters"])
    kinds = {
        "samples": "another data set, of {} samples where this one has {}",
        "test samples": "other test data, {} samples where these are {}",
        "rows": "another data set: some of its {samples} samples are not the same",
        "test rows": "other test data: some of the samples are not the same",
        "split": "another split: the clients hold other samples",
    }
    for name, words in kinds.items():
        if stored.get(name) != now.get(name):
            yield words.format(stored.get(name), now.get(name), samples=now.get("samples"))


def _parameters(stored: list[list[Any]], now: list[list[Any]]) -> Iterator[str]:
    then, here = {each[0]: each[1:] for each in stored}, {each[0]: each[1:] for each in now}
    if list(then) != list(here):
        missing, new = [n for n in then if n not in here], [n for n in here if n not in then]
        said = [f"it has {missing[0]}" if missing else "", f"this one has {new[0]}" if new else ""]
        yield f"another model: {' and '.join(filter(None, said)) or 'its parameters come in another order'}"
        return
    for name in then:
        for k, what in enumerate(("shape", "dtype", "requires_grad")):
            if then[name][k] != here[name][k]:
                yield f"another model: {what} of {name} was {then[name][k]} and is now {here[name][k]}"


def _rows(dataset: Dataset, test: bool) -> str:
    """SHA-256 of some samples, the same ones on every machine."""
    reader = dataset.test_reader if test else dataset.reader
    if reader is not None:  # the first ones: elsewhere each might be in another file
        return _digest(map(_bytes, trees.leaves(reader.take(slice(0, min(ROWS, len(reader)))))))
    inputs: Any = dataset.test_inputs if test else dataset.inputs
    targets: Any = dataset.test_targets if test else dataset.targets
    count = dataset.test_samples if test else len(dataset)
    rows = np.sort(stream(0, Purpose.PROBE).choice(count, min(count, ROWS), replace=False)).astype(np.int64)
    if dataset.collate is None:
        leaves = trees.leaves((trees.take(inputs, rows), trees.take(targets, rows)))
    else:  # samples as they are kept: what makes a batch of them may draw at random
        leaves = [leaf for k in rows.tolist() for leaf in trees.leaves((inputs[k], targets[k]))]
    return _digest(map(_bytes, leaves))


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, Tensor):
        t = leaf.detach().cpu().contiguous()
        head = f"{t.dtype} {tuple(t.shape)}".encode()
        return head + (t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype} {leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes()
    return repr(leaf).encode() if isinstance(leaf, str | bytes | int | float) else type(leaf).__name__.encode()


def _digest(parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()
