"""Runs into folders: start one, resume one, and what happens when it is interrupted. Their files: ``runs.files``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.budget_spent import BudgetSpent
from fedvra.callbacks.checkpoints import Checkpoints
from fedvra.callbacks.client_results import ClientResults, TrainLosses
from fedvra.callbacks.diagnostics import Diagnostics
from fedvra.callbacks.following import Following
from fedvra.callbacks.function import as_callbacks
from fedvra.callbacks.records import Records
from fedvra.callbacks.stopping import Patience, Until
from fedvra.callbacks.trackers.base import make_trackers, require_installed
from fedvra.core.errors import DivergedError, RunInterrupt, require
from fedvra.core.threads import one_thread
from fedvra.data.dataset import FederatedData
from fedvra.data.picture import picture
from fedvra.engines import checkpoint, fingerprint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.problems.base import state_dict_of
from fedvra.runs.config import build, make_engine
from fedvra.runs.described import config_of
from fedvra.runs.files import Record, RunFolder, RunSummary, finite, write_json
from fedvra.runs.options import RunConfig
from fedvra.state.folders import make_folder, next_free, require_unused, require_writable
from fedvra.state.model_file import save_model
from fedvra.studies.stopping import stop_on_signal

__all__ = [
    "Record",
    "RunFolder",
    "RunSummary",
    "check",
    "execute",
    "export",
    "finite",
    "make_folder",
    "next_free",
    "play",
    "require_unused",
    "resume",
    "write_json",
]

Callbacks: TypeAlias = Sequence[Callback | Callable[[Record], object]]


def execute(config: RunConfig, out: str | Path, callbacks: Callbacks = (), title: str | None = None) -> RunSummary:
    """Run what ``config`` describes into the folder ``out``, which must not be in use; returns the summary it wrote there.

    Whatever is wrong with the options or the data is found out before anything is written. A run that diverges is a result,
    not an error: its summary says so. On Ctrl-C the round is finished and saved before :class:`RunInterrupt` is raised.

    Args:
        callbacks: further ones, e.g. ``[fv.Patience(20)]``; functions of a record too.
        title: what the run is called on a display.
    """
    folder = RunFolder(out)
    with begun(config, folder, callbacks=callbacks) as federation:
        return play(federation, config, folder, callbacks, title)


@contextmanager
def begun(
    config: RunConfig, folder: RunFolder, experiment: Experiment | None = None, callbacks: Callbacks = ()
) -> Iterator[Federation]:
    """The federation of a new run, in a folder that was not in use and is now ours."""
    folder.require_unused()
    with _opened(config, folder, experiment) as federation:
        federation.preflight()
        for each in followers(config, folder, callbacks):
            each.check(federation.experiment)
        make_folder(folder.path)
        with folder.locked():
            folder.require_unused()  # still: another process may have come first
            folder.create(config, federation.experiment)
            yield federation


def resume(
    out: str | Path,
    callbacks: Callbacks = (),
    title: str | None = None,
    *,
    rounds: int | None = None,
    workers: int | str | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> RunSummary:
    """Resume the run in ``out`` from its last intact checkpoint; the result is bitwise that of a run without a stop.

    Args:
        rounds: continue to this round instead of the one the run was started for.
        workers: this many processes from now on; the result does not depend on it.
        engine, address: where clients are run from now on, ``"local"`` or ``"ray"``; nor on this.

    A run that has ended is left as it is, and its summary returned.
    """
    folder = RunFolder(out)
    config = folder.config(rounds, workers, engine, address)
    with folder.locked():
        ended = folder.ended(config)
        if ended is not None:
            return ended
        with resumed(config, folder) as federation:
            if rounds is not None:
                folder.write_config(folder.config(rounds))
            return play(federation, config, folder, callbacks, title)


@contextmanager
def resumed(config: RunConfig, folder: RunFolder, experiment: Experiment | None = None) -> Iterator[Federation]:
    """The federation of a run in a folder that is ours, as it was at its last intact checkpoint."""
    with _restored(config, folder, experiment) as federation:
        done, option = federation.state.round, "rounds" if config.python else "--rounds"
        require(config.rounds >= done, f"{folder.path} is at round {done} already: {option} must be at least that.")
        if done < config.rounds:
            federation.preflight()
        yield federation


@contextmanager
def begun_or_resumed(
    config: RunConfig, folder: RunFolder, experiment: Experiment, callbacks: Callbacks = ()
) -> Iterator[tuple[Federation, RunSummary | None]]:
    """A run of objects: new, or as the folder has it; then also its result, if it has ended."""
    if not folder.config_file.exists():
        with begun(config, folder, experiment, callbacks) as federation:
            yield federation, None
        return
    folder.require_same_options(config)
    with folder.locked(), resumed(config, folder, experiment) as federation:
        ended = folder.ended(config)
        if ended is None:
            folder.write_config(config)
        yield federation, ended


def export(out: str | Path, path: str | Path) -> tuple[Path, int]:
    """Write the model that the run in ``out`` is for, as of its last intact checkpoint; returns the file and that round."""
    folder = RunFolder(out)
    with folder.locked(), _restored(folder.config(workers=1, engine="local"), folder) as federation:
        state = federation.state
        require(state.round > 0, f"{folder.path} has no checkpoint to export: `fedvra resume` comes to one.")
        file = save_model(state_dict_of(federation.experiment.problem, state.model), path)
        return file, state.round


def options_of(experiment: Experiment, **options: Any) -> RunConfig:
    """The options of a run of objects, once it is known that they fit each other; see :mod:`fedvra.runs.described`."""
    e = experiment
    with one_thread():
        e.problem.check(e.data, e.solver.of_run(e.batch_size, e.drop_last, e.seed))
    facts = fingerprint.facts(e)
    return config_of(e, len(e.problem.samples(e.data)), **{"fingerprint": fingerprint.short(facts), **options})


def check(config: RunConfig) -> None:
    """Raise what :func:`execute` would refuse, at little cost: nothing is run, and no fast path is prepared."""
    require_installed(config.track or ())
    experiment = build(config)
    for each in followers(config, RunFolder(""), ()):
        each.check(experiment)
    plain = replace(experiment, solver=replace(experiment.solver, path="eager"))
    with one_thread(), closing(Federation(plain, workers=1)) as federation:
        _require_clients(federation, config)
        federation.preflight()


def play(
    federation: Federation,
    config: RunConfig,
    folder: RunFolder,
    callbacks: Callbacks = (),
    title: str | None = None,
) -> RunSummary:
    """Play the rounds that are left, keeping the books; ends with a summary however it ends."""
    with stop_on_signal(ready=False) as stop:
        label = federation.experiment.algorithm.label
        run = Run.of(
            federation,
            config.rounds,
            title=title or f"{label} on {config.task}",
            task=config.task,
            targets=config.targets,
            options=config.flat(),
            folder=folder.path,
            records=folder.rewind(federation.state.round),
            interrupted=lambda: stop.asked,
        )
        with suppress(DivergedError), Following(run, followers(config, folder, callbacks)) as following:
            stop.begin()  # those who write the summary are there
            run.leaving = stop.asked
            while not run.over:
                following.round(federation.round)
            stop.ready = False  # the end is written whole: a second signal waits for it
    if stop.at_once:
        raise KeyboardInterrupt
    assert run.summary is not None
    if run.status == "interrupted":
        again = "the same call" if config.python else f"`fedvra resume {folder.path}`"
        raise RunInterrupt(f"interrupted after round {len(run.records)}; resume with {again}.")
    data = federation.experiment.data
    if isinstance(data, FederatedData) and not folder.partition_file.exists():
        picture(data, folder.partition_file)  # last, since importing matplotlib would delay the first round
    if stop.asked:  # too late for this run, but whoever called may have others in mind
        raise RunInterrupt(f"interrupted when the run in {folder.path} had come to its end.")
    return run.summary


def followers(config: RunConfig, folder: RunFolder, callbacks: Callbacks) -> list[Callback]:
    """The callbacks, in this order: what is measured, when it ends, the records, trackers, the user's own, checkpoints."""
    looking: list[Callback] = [Diagnostics(config.diagnostics)] if config.diagnostics else []
    looking += [TrainLosses()] if config.train_losses else []
    looking += [ClientResults(config.client_results, tune=config.tune_steps)] if config.client_results else []
    looking += [BudgetSpent()] if config.privacy is not None else []
    looking += [Until(config.until)] if config.until is not None else []
    looking += [Patience(config.patience)] if config.patience is not None else []
    own = as_callbacks(callbacks)
    return [
        *looking,
        Records(folder),
        *make_trackers(config.track or ()),
        *own,
        Checkpoints(folder, config.checkpoint_every),
    ]


@contextmanager
def _restored(config: RunConfig, folder: RunFolder, experiment: Experiment | None = None) -> Iterator[Federation]:
    """The federation of a run as it was at its last intact checkpoint."""
    with _opened(config, folder, experiment) as federation:
        folder.require_same(federation.experiment)
        checkpoint.restore(federation, folder.checkpoints, up_to=len(folder.metrics()))
        yield federation


@contextmanager
def _opened(config: RunConfig, folder: RunFolder, experiment: Experiment | None = None) -> Iterator[Federation]:
    """The federation a config describes, of an experiment that is given or else built.

    Client state that memory has no room for is kept in the run's own folder.
    """
    require_installed(config.track or ())
    state_folder = folder.path if config.state_folder is None else Path(config.state_folder)
    if config.state_folder is not None:
        require_writable(state_folder, "--state-folder")
    with (
        one_thread(),
        closing(
            Federation(
                experiment or build(config),
                config.workers,
                state_dtype=None if config.state_dtype in (None, "float32") else getattr(torch, config.state_dtype),
                memory_limit=None if config.state_memory == "auto" else int(config.state_memory),
                state_folder=state_folder,
                engine=make_engine(config),
            )
        ) as federation,
    ):
        federation.checkpoints = folder.checkpoints
        _require_clients(federation, config)
        yield federation


def _require_clients(federation: Federation, config: RunConfig) -> None:
    require(
        federation.total == config.clients,
        f"the task {config.task} has {federation.total} clients and the options say {config.clients}: partition its data among "
        f"options.clients, or say --clients {federation.total}.",
    )
