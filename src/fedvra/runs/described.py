"""A run of Python objects as options: what can be written down is, and what cannot be is described.

A config file made here says in ``python`` which of its options stand for objects. Reports, trackers and tables read it as any
other; nobody can build the run from it but the Python that made it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedvra.algorithms import REGISTRY
from fedvra.core.compressor import Compressor
from fedvra.core.errors import UsageError
from fedvra.core.record_dp import RecordDP
from fedvra.core.registry import Registry
from fedvra.data.dataset import FederatedData
from fedvra.engines.experiment import Experiment
from fedvra.runs.algorithm_text import make_algorithm, settings_of, written
from fedvra.runs.options import OPTIONS, RunConfig
from fedvra.samplers import SAMPLERS, parse_sampler
from fedvra.samplers.work import Epochs, RandomEpochs, Steps

LONG = 12
"""Numbers of a table that are written out; of a longer one its hash is."""


def config_of(experiment: Experiment, total: int, **options: Any) -> RunConfig:
    """The options of a run that is given as objects.

    Args:
        total: how many clients there are.
        options: everything that is no part of the experiment, by the name of its option: ``rounds``, ``workers``, ...
    """
    e = experiment
    said: dict[str, Any] = {"python": set(), "clients": total}
    _say_fields(said, e)
    _say_algorithm(said, e)
    _say_sampler(said, e.sampler, total)
    _say_work(said, e)
    _say_problem(said, e)
    for name in ("precision", "device"):
        said[name] = getattr(e.solver, name)
    said.update(options)
    for name, field in OPTIONS.items():
        if name not in said:  # belongs to tasks that are known by name
            said[name] = None if field.metadata["decides"] else field.metadata["default"]
        if name == "python":
            continue
        try:
            field.metadata["read"](name, said[name])
        except (UsageError, TypeError, ValueError, AttributeError):
            said["python"].add(name)
    return RunConfig(**{**said, "python": tuple(name for name in OPTIONS if name in said["python"])})


def described(value: Any) -> Any:
    """Something to write down that is the same in every process: numbers and words as they are, objects by what they hold.

    >>> described(0.5), described(Epochs(2)), described(np.arange(3)), described([len, None])
    (0.5, 'Epochs(count=2)', [0, 1, 2], '[len, None]')
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor | np.ndarray) or (isinstance(value, list | tuple) and _is_table(value)):
        table = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if table.size <= LONG:
            return table.tolist()
        digest = hashlib.sha256(np.ascontiguousarray(table, dtype=np.float64).tobytes()).hexdigest()[:8]
        return f"a table of shape {list(table.shape)} ({digest})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(str(described(each)) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {described(each)}' for key, each in value.items())}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr]
        return f"{type(value).__name__}({', '.join(f'{name}={described(each)}' for name, each in fields)})"
    return getattr(value, "__qualname__", None) or type(value).__name__  # a function, or an object of some class


def _is_table(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except ValueError:  # rows of several lengths
        return False


def _say_fields(said: dict[str, Any], e: Experiment) -> None:
    """Whatever of the experiment is an option of the same name."""
    for field in dataclasses.fields(e):
        value = getattr(e, field.name)
        if field.name in OPTIONS and field.name not in ("algorithm", "sampler", "data"):
            said[field.name] = value.text() if isinstance(value, Compressor | RecordDP) else described(value)
    said["deploy"] = e.deployment.text()


def _say_algorithm(said: dict[str, Any], e: Experiment) -> None:
    algorithm, settings = e.algorithm, settings_of(e.algorithm)
    said["algorithm"] = algorithm.name
    try:
        said["set"] = {name: written(name, value) for name, value in settings.items()}
        known = make_algorithm(algorithm.name, said["set"]) == algorithm
    except UsageError:  # a function, or an algorithm that is not registered
        said["set"] = {name: described(value) for name, value in settings.items()}
        known = False
    if not known:
        said["python"] |= {"algorithm", "set"}
        said["algorithm"] = algorithm.name if _registered(algorithm) else algorithm.label


def _registered(algorithm: Any) -> bool:
    return algorithm.name in REGISTRY.names() and REGISTRY.get(algorithm.name) is type(algorithm)


def _say_sampler(said: dict[str, Any], sampler: Any, total: int) -> None:
    size = getattr(sampler, "m", None)
    said["cohort"] = size if isinstance(size, int) else total
    name = _name_of(sampler, SAMPLERS)
    if dataclasses.is_dataclass(sampler) and name is not None:
        rest = {f.name: getattr(sampler, f.name) for f in dataclasses.fields(sampler) if f.name != "m" and f.init}
        given = ",".join(f"{key}={value}" for key, value in rest.items() if value is not None)
        said["sampler"] = f"{name}:{given}" if given else name
        try:
            if parse_sampler(said["sampler"], said["cohort"]) == sampler:
                return
        except (UsageError, TypeError, ValueError):
            pass
    said["sampler"] = described(sampler)
    said["python"].add("sampler")


def _name_of(thing: object, registry: Registry[Any]) -> str | None:
    return next((name for name, kind in registry.items() if kind is type(thing)), None)


def _say_work(said: dict[str, Any], e: Experiment) -> None:
    said["epochs"] = said["steps"] = None
    if isinstance(e.work, Epochs):
        said["epochs"] = e.work.count
    elif isinstance(e.work, RandomEpochs):
        said["epochs"] = f"{e.work.low}-{e.work.high}"
    elif isinstance(e.work, Steps) and np.ndim(e.work.count) == 0 and int(np.asarray(e.work.count)) > 0:
        said["steps"] = int(np.asarray(e.work.count))
    else:
        said["epochs"] = str(described(e.work))
        said["python"].add("epochs")


def _say_problem(said: dict[str, Any], e: Experiment) -> None:
    """Named after what one sees in a title: the data set, or the kind of problem."""
    named = e.data.dataset.name if isinstance(e.data, FederatedData) else ""
    said["task"] = named if named not in ("", "own") else type(e.problem).__name__.lower()
    said["split"] = "given"
    said["model"] = _model(e.problem)
    said["weight_decay"] = e.problem.decay
    said["python"] |= {"task", "split", "model"}


def _model(problem: Any) -> str:
    model = getattr(problem, "model", None)
    return type(problem).__name__ if model is None else str(described(model))
