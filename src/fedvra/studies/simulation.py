"""``simulate``: a run from Python, for people with their own model and data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedvra.algorithms.base import Algorithm
from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.budget_spent import BudgetSpent
from fedvra.callbacks.diagnostics import Diagnostics
from fedvra.callbacks.following import Following
from fedvra.callbacks.function import Function, as_callbacks
from fedvra.callbacks.notebook import view_of
from fedvra.clock.system import System
from fedvra.compress.base import as_compressor, as_download
from fedvra.core.cohort import Setting
from fedvra.core.compressor import Compressor
from fedvra.core.deploy import Deploy, parse_deploy
from fedvra.core.errors import DivergedError, require
from fedvra.core.optimisers import PLAIN, LocalOptimiser
from fedvra.core.record_dp import RecordDP, as_privacy
from fedvra.core.validation import check_whole
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.engines.ray_engine import Ray
from fedvra.local.metrics import Metrics, check_metrics
from fedvra.local.protocol import SolverSettings
from fedvra.policies.refusals import Refusal
from fedvra.problems.base import Problem
from fedvra.runs.files import Record, RunFolder
from fedvra.runs.history import ClientRows, History
from fedvra.samplers import Sampler
from fedvra.samplers.work import Work
from fedvra.show.page import FILE as REPORT
from fedvra.show.page import write_report
from fedvra.state.client_store import at_home
from fedvra.studies.execution import begun_or_resumed, options_of, play
from fedvra.studies.keeping import Kept, Snapshots


def simulate(
    algorithm: Algorithm,
    *,
    problem: Problem,
    sampler: Sampler,
    work: Work,
    rounds: int,
    data: Any = None,
    lr: Setting = 0.01,
    local: LocalOptimiser = PLAIN,
    batch_size: int | None = None,
    drop_last: bool = False,
    seed: int = 0,
    weights: Any = "equal",
    x_init: Tensor | None = None,
    keep: Literal["x0"] | None = None,
    drop: float = 0.0,
    refuse: Refusal | None = None,
    compress: Compressor | str | None = None,
    compress_down: Compressor | str | None = None,
    privacy: RecordDP | str | None = None,
    system: System | None = None,
    eval_every: int = 1,
    metrics: Metrics | None = None,
    deploy: Deploy | str | None = None,
    workers: int | str = "auto",
    engine: Ray | None = None,
    solver: SolverSettings | None = None,
    state_dtype: torch.dtype | None = None,
    memory_limit: int | None = None,
    state_folder: str | Path | None = None,
    diagnostics: int = 0,
    observers: Sequence[Callback] = (),
    callbacks: Sequence[Callback] = (),
    progress: bool | Callable[[dict[str, Any]], None] | None = None,
    out: str | Path | None = None,
    checkpoint_every: int = 50,
    track: str | Sequence[str] | None = None,
    targets: Sequence[Any] | None = None,
    report: bool = True,
) -> History:
    """Run ``rounds`` rounds of ``algorithm`` on ``problem`` and return the result.

    Args:
        algorithm: e.g. ``fv.FedVRA(gamma=0.1, a=10, d=10)``.
        problem: e.g. ``fv.Supervised(model, loss=...)`` or ``fv.Quadratic(A, b)``.
        data: ``fv.split(...)``, where the problem needs data.
        sampler: who takes part, e.g. ``fv.Uniform(10)``.
        work: how much each does, e.g. ``fv.Epochs(2)``.
        lr: eta; like every setting a number, a table [N] or [R, N], or a function of the cohort.
        local: what takes the local steps: ``fv.SGD(momentum=0.9, clip=10)``, ``fv.Adam()``, ``fv.AdamW()``, ``fv.Torch(...)``.
            It is handed the corrected gradient and starts anew in each round.
        batch_size: None takes a client's whole data in each step.
        drop_last: leave out the last, smaller batch of an epoch; a client with less than one batch keeps it.
        weights: omega_i: "equal", "samples" or one number per client.
        x_init: start here instead of at the problem's own initial point.
        keep: "x0" keeps x0 after every round in ``history.trajectory``.
        drop: probability that a reply is lost after the local work was done.
        refuse: which uploads are not counted, e.g. ``fv.MedianNorm(3)``; the records name them. Rounds are then computed one
            client at a time, and every upload of a round is held at once.
        compress: what is done to uploads, e.g. ``fv.Quantize(bits=4)``, ``fv.TopK(0.1)`` or ``fv.Chain(...)``; the duals, or a
            residual where there are none, make up for what is left out. See docs/compression.md.
        compress_down: send x0 to the clients in ``"bfloat16"`` or ``"int8"``.
        privacy: ``fv.RecordDP(clip=1, noise=2, max_epsilon=8)``: clients clip the gradient of every record and add noise. The
            run's records say what epsilon has come to; training losses are not reported. See docs/privacy.md.
        system: devices and networks, e.g. ``fv.System(step=0.1, up=1e6, deadline=30)``: every record then has a simulated time,
            and replies after the deadline are not counted.
        eval_every: evaluate on the test data every so many rounds; 0 never.
        metrics: figures of one's own, ``{"f1": f1}``: functions of the outputs and targets of the whole test data (up to 1 GiB
            of them), or objects with ``update``, ``compute`` and ``reset`` such as those of torchmetrics, ``fv.RMSE()``,
            ``fv.Perplexity()``. They are in the records under their names.
        deploy: which model the run is for: ``"x0"``, the ``"mean"`` of the clients' models in a round, or a running mean of x0,
            ``"ema:0.9"``; None: what suits the algorithm. The records have x0's accuracy as ``test_accuracy`` and that of the
            deployed model, where it is another, as ``model_accuracy``; targets go by the latter. See docs/deploy.md.
        workers: processes on this machine; the result does not depend on it.
        engine: ``fv.Ray()`` runs the clients on a Ray cluster, to the same result; None: on this machine.
        state_dtype: keep the clients' duals in this dtype, e.g. ``torch.bfloat16`` for half the memory;
            ``history.state_drift()`` is what it cost. None: that of the model.
        memory_limit: bytes of client state to keep in memory, the rest on disk; None: half of what the machine has free.
        state_folder: where on disk; None: the system's folder for temporary files.
        diagnostics: K > 0 puts an object ``diagnostics`` into every K-th record; see ``fv.Diagnostics``.
        observers: an older name for ``callbacks``.
        callbacks: look on at the start, after each round and at the end, may add to the record and may end the run, e.g.
            ``fv.StationarityGap(every=10)``, ``fv.Patience(20)``; see ``fv.Callback``.
        progress: None shows a bar on a terminal and in a notebook, and nothing where output is piped; True shows lines there
            too, False nothing. A function is called with each round's record; ``raise fv.StopRun("why")`` in it ends the run.
        out: a folder for the run, as ``fedvra run`` writes it: config, records, checkpoints, report. The same call again
            resumes the run to the bit, or returns its result; another model, loss, data set or partition is refused.
        checkpoint_every: rounds between checkpoints; 0 makes one at the end and on Ctrl-C only.
        track: also log to a tracker, ``"tensorboard"``, ``"wandb"`` or ``"mlflow"``, or several.
        targets: accuracies in per cent, or other figures such as ``"f1=0.8"``, whose first round the folder's summary says.
        report: whether to write ``report.html`` into the folder when the run has ended.

    Returns:
        A :class:`~fedvra.runs.history.History`: the final model, one record per round, the clients' duals.

    Raises:
        UsageError: the arguments do not fit together; nothing has been run or written.
        DivergedError: x0 is no longer finite. Any exception during the run, be it from a function of yours, carries what there
            was after the last complete round as its attribute ``history``.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))  # f_i(x) = x'x/2 - b'x, minimal at (1, 1)
    >>> history = fv.simulate(fv.FedVRA(), problem=costs, sampler=fv.Uniform(2), work=fv.Steps(5), lr=0.1, rounds=60)
    >>> [round(number, 2) for number in history.x0.tolist()]
    [1.0, 1.0]
    """
    _require_kinds(algorithm, problem, sampler, work)
    check_whole("rounds", rounds, least=0)
    require(keep in (None, "x0"), f"keep must be None or 'x0', got {keep!r}.")
    experiment = Experiment(
        algorithm=algorithm,
        problem=problem,
        sampler=sampler,
        work=work,
        data=data,
        lr=lr,
        batch_size=batch_size,
        seed=seed,
        weights=weights,
        x_init=None if x_init is None else torch.as_tensor(x_init),
        drop=drop,
        eval_every=eval_every,
        drop_last=drop_last,
        solver=solver or SolverSettings(),
        refuse=refuse,
        compress=as_compressor(compress),
        compress_down=as_download(compress_down),
        privacy=as_privacy(privacy),
        system=system,
        local=local,
        metrics=check_metrics({} if metrics is None else metrics),
        deploy=None if deploy is None else parse_deploy(deploy),
    )
    watching: list[Callback] = [Diagnostics(diagnostics)] if check_whole("diagnostics", diagnostics, least=0) else []
    for name, value in {"track": track, "targets": targets}.items():
        require(out is not None or value is None, f"{name} needs a folder to work in: say out='runs/mine'.")
    kept = None if keep is None else Kept()
    looking: list[Callback] = as_callbacks([*watching, *observers, *callbacks])
    looking += [] if kept is None else [kept]
    view = Function(progress) if callable(progress) else view_of(progress)
    looking += [] if view is None else [view]
    require(engine is None or isinstance(engine, Ray), f"engine must be None or fv.Ray(...), got {engine!r}.")
    if out is None:
        looking += [] if experiment.privacy is None else [BudgetSpent()]
        looking += [] if engine is None else [Snapshots(engine.snapshot_every)]
        with closing(Federation(experiment, workers, state_dtype, memory_limit, state_folder, engine)) as federation:
            run = Run.of(federation, rounds)
            with _telling(federation, lambda: run.records, kept):
                with Following(run, looking) as following:
                    while not run.over:
                        following.round(federation.round)
                return _history(federation, run.records, kept)
    options = {
        "rounds": rounds,
        "workers": workers,
        "state_dtype": None if state_dtype is None else str(state_dtype).removeprefix("torch."),
        "state_memory": "auto" if memory_limit is None else memory_limit,
        "state_folder": None if state_folder is None else str(state_folder),
        "checkpoint_every": checkpoint_every,
        "track": track,
        **({} if engine is None else engine.options(workers)),
        **({} if targets is None else {"targets": list(targets)}),
    }
    return _into(RunFolder(out), experiment, options, looking, kept, report)


def _into(
    folder: RunFolder,
    experiment: Experiment,
    options: dict[str, Any],
    looking: list[Callback],
    kept: Kept | None,
    report: bool,
) -> History:
    """The run in its folder: begun, resumed, or as it ended."""
    config = options_of(experiment, **options)
    with begun_or_resumed(config, folder, experiment, looking) as (federation, ended):
        if kept is not None:
            kept.file = folder.path / "trajectory.bin"
            kept.read(federation)
        with _telling(federation, folder.metrics, kept):
            summary = ended or play(federation, config, folder, looking)
            if summary.status == "diverged":
                raise DivergedError(str(summary.message), summary.rounds + 1)
        if report and not ended and summary.rounds:
            write_report([folder.path], folder.path / REPORT)
        return _history(federation, folder.metrics(), kept)


@contextmanager
def _telling(federation: Federation, records: Callable[[], list[Record]], kept: Kept | None) -> Iterator[None]:
    """An exception takes with it what there is."""
    try:
        yield
    except BaseException as error:
        if federation.state.round:
            error.history = _history(federation, records(), kept)  # type: ignore[attr-defined]
            error.add_note(
                f"The run ended after round {federation.state.round}. What it had come to is in this exception's attribute "
                "history; simulate(..., x_init=error.history.x0) starts from there."
            )
        raise


def _history(federation: Federation, metrics: list[dict[str, Any]], kept: Kept | None) -> History:
    """What a run has come to."""
    state, clients = federation.state, federation.clients
    y = clients.y
    return History(
        problem=federation.experiment.problem,
        x0=state.x0.to("cpu", copy=True),
        lam=state.lam.to("cpu", copy=True),
        aux=None if state.aux is None else state.aux.cpu(),
        metrics=metrics,
        duals=ClientRows(at_home(clients.duals)),
        y={} if y is None else ClientRows(at_home(y)),
        trajectory=None if kept is None else torch.stack(kept.x0) if kept.x0 else state.x0.new_empty(0, len(state.x0)),
        omega=federation.omega,
        path=state.path,
        deploy=federation.experiment.deployment,
        other=None if state.deployed is None else state.deployed.to("cpu"),
    )


def _require_kinds(algorithm: object, problem: object, sampler: object, work: object) -> None:
    """Refuse a class where one of its objects is wanted, a name, a bare number: what newcomers try first."""
    for name, value, kind, example in (
        ("algorithm", algorithm, Algorithm, "fv.FedVRA()"),
        ("problem", problem, Problem, "fv.Supervised(model)"),
        ("sampler", sampler, Sampler, "fv.Uniform(10)"),
        ("work", work, Work, "fv.Epochs(2)"),
    ):
        given = (
            f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"
        )
        require(isinstance(value, kind), f"{name} must be an object such as {example}, got {given}.")
