"""From layers of options to one config, and from a config to the experiment it describes.

Defaults are the paper's (its MNIST experiment, but for FedVRA's stepsizes, which are auto); a task may have its own, a config
file overrides both, and the command line wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedvra.core.errors import UsageError, require, unknown_name
from fedvra.runs import option_text
from fedvra.runs.options import OPTIONS, RunConfig

if TYPE_CHECKING:
    from fedvra.core.cohort import Setting
    from fedvra.engines.experiment import Experiment
    from fedvra.engines.ray_engine import Ray
    from fedvra.tasks.base import Task


BEFORE_DEPLOY: Mapping[str, Any] = {"deploy": "x0"}
"""A layer beneath options that may have been written when all runs were for x0."""


def configure(*layers: Mapping[str, Any]) -> RunConfig:
    """What the layers ask for, later ones winning, over the task's defaults, over the paper's.

    ``epochs`` and ``steps`` replace each other. ``set`` and ``deploy`` belong to an algorithm: a layer's are passed over where
    a later layer chose another algorithm; hyper-parameters are otherwise added to.

    >>> configure({"task": "mnist", "steps": 24}, {"set": {"a": 5}}).to_dict()["set"]
    {'gamma': 'auto', 'a': 5.0, 'd': 'auto'}
    """
    from fedvra.tasks.own import find_task

    for layer in layers:
        for name in layer:
            if name not in OPTIONS:
                raise unknown_name("option", str(name), OPTIONS)
    if any(layer.get("python") for layer in layers):
        return _of_objects(layers)
    names = [layer["task"] for layer in layers if layer.get("task") is not None]
    require(bool(names), "say which task to run, e.g. `fedvra run digits`.")
    task: Task = find_task(str(names[-1]))
    paper = {name: field.metadata["default"] for name, field in OPTIONS.items()}
    merged: dict[str, Any] = {}
    for layer in (paper, task.defaults, *layers):
        merged.update(_with_one_kind_of_work(layer))
    merged["set"] = _settings(str(merged["algorithm"]), task, layers)
    merged["deploy"] = _deploy(str(merged["algorithm"]), (task.defaults, *layers))
    return RunConfig(**merged)


def from_now_on(
    rounds: int | None, workers: int | str | None, engine: str | None, address: str | None
) -> dict[str, Any]:
    """The layer of a run that goes on, perhaps elsewhere: on this machine there are no options of a cluster."""
    given = {"rounds": rounds, "workers": workers, "engine": engine, "address": address}
    layer = {name: value for name, value in given.items() if value is not None}
    return {"address": None, "gpus_per_worker": 0.0, **layer} if engine == "local" else layer


def _of_objects(layers: tuple[Mapping[str, Any], ...]) -> RunConfig:
    """As a run of Python objects wrote it down: nothing is filled in, and what was described stays as it is."""
    unsaid = {name: None if field.metadata["decides"] else field.metadata["default"] for name, field in OPTIONS.items()}
    merged: dict[str, Any] = unsaid
    for layer in layers:
        merged = {**merged, **layer}
    return RunConfig(**merged)


def read_config(path: str | Path) -> dict[str, Any]:
    """The options in a YAML file, by name; :func:`configure` checks them."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the config file {path} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the config file {path} is not YAML: {' '.join(str(error).split())}.") from None
    if content is None:
        return {}
    require(isinstance(content, dict), f"the config file {path} must hold options as `name: value` lines.")
    return {str(name): value for name, value in content.items()}


def require_options(config: RunConfig) -> None:
    """Refuse a config that describes objects, from which nothing can be built."""
    require(
        not config.python,
        f"this run was made of Python objects ({', '.join(config.python or ())}), which its config.yaml only describes: make "
        "the same call in Python again to resume it.",
    )


def build(config: RunConfig) -> Experiment:
    """The experiment a config describes: data loaded and partitioned, model made, everything checked that can be by now."""
    from fedvra.clock.reading import make_system
    from fedvra.compress.base import as_compressor, as_download
    from fedvra.core import accelerators
    from fedvra.core.deploy import parse_deploy
    from fedvra.core.optimisers import parse_local
    from fedvra.core.record_dp import as_privacy
    from fedvra.engines.experiment import Experiment
    from fedvra.local.protocol import SolverSettings
    from fedvra.policies.refusals import parse_refusal
    from fedvra.runs.algorithm_text import make_algorithm
    from fedvra.samplers import parse_sampler
    from fedvra.samplers.work import Steps, Work, parse_epochs
    from fedvra.tasks.own import find_task, make

    require_options(config)
    if config.device == "cpu":
        accelerators.hide()
    algorithm = make_algorithm(config.algorithm, config.set)
    sampler = parse_sampler(config.sampler, config.cohort)
    work: Work = parse_epochs(str(config.epochs)) if config.steps is None else Steps(config.steps)
    problem, data = make(config.task, config)
    return Experiment(
        algorithm=algorithm,
        problem=problem,
        sampler=sampler,
        work=work,
        data=data,
        metrics=find_task(config.task).figures(),
        lr=_stepsize(config),
        batch_size=config.batch_size,
        seed=config.seed,
        weights=config.weights,
        drop=config.drop,
        eval_every=config.eval_every,
        drop_last=config.drop_last,
        solver=SolverSettings(precision=config.precision, device=config.device),
        local=parse_local(config.local),
        refuse=None if config.refuse is None else parse_refusal(config.refuse),
        compress=as_compressor(config.compress),
        compress_down=as_download(config.compress_down),
        privacy=as_privacy(config.privacy),
        system=None if config.system is None else make_system(config.system),
        deploy=None if config.deploy is None else parse_deploy(config.deploy),
    )


def make_engine(config: RunConfig) -> Ray | None:
    """Where the clients of a run are computed; None: on this machine."""
    from fedvra.engines.ray_engine import Ray

    return Ray(config.address, gpus_per_worker=config.gpus_per_worker) if config.engine == "ray" else None


def _stepsize(config: RunConfig) -> Setting:
    """The number itself where it does not change."""
    from fedvra.policies import Schedule, parse_setting

    base = parse_setting(config.lr)
    if config.lr_decay == 1 and not config.lr_warmup and config.lr_cosine is None:
        return base
    return Schedule(base, config.lr_decay, config.lr_warmup, config.lr_cosine)


def _with_one_kind_of_work(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The layer, saying None of epochs where it says steps and the other way round."""
    given = {name: value for name, value in layer.items() if not (name in ("epochs", "steps") and value is None)}
    require(
        not ("epochs" in given and "steps" in given),
        "local work is counted in epochs or in steps: give one of the two.",
    )
    if "steps" in given:
        given["epochs"] = None
    elif "epochs" in given:
        given["steps"] = None
    return given


def _settings(algorithm: str, task: Task, layers: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """All hyper-parameters of the algorithm, as they come out."""
    from fedvra.runs.algorithm_text import make_algorithm, settings_of

    given: dict[str, Any] = dict(task.settings.get(algorithm, {}))
    for layer in layers:
        if layer.get("algorithm", algorithm) == algorithm:
            given.update(option_text.assignments("set", layer.get("set")))
    return settings_of(make_algorithm(algorithm, given))


def _deploy(algorithm: str, layers: tuple[Mapping[str, Any], ...]) -> str:
    """Which model the run is for: the last word of those that speak of this algorithm, else the algorithm's own."""
    from fedvra.algorithms import REGISTRY

    said = [layer.get("deploy") for layer in layers if layer.get("algorithm", algorithm) == algorithm]
    return next((each for each in reversed(said) if each is not None), None) or REGISTRY.get(algorithm).deploy.text()
