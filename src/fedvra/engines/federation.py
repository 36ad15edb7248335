"""The round loop of a federation that lives on this machine.

One round: sampler and work give the cohort with (client, p, Q, eta, omega) -> broadcast x0 -> workers: read state, local
steps, stage new state, partial sums -> server update -> commit those whose reply was counted -> evaluate -> a record.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core import rule
from fedvra.core.adaptive import Memory, chosen
from fedvra.core.block import Broadcast
from fedvra.core.cohort import Cohort, Floats, Ints
from fedvra.core.deploy import Deployed
from fedvra.core.errors import require
from fedvra.core.step import Server, Sums, server_round
from fedvra.core.streams import Purpose, stream
from fedvra.core.threads import one_thread
from fedvra.engines.budgets import Budgets, told_samples
from fedvra.engines.cohort_work import CohortWork, traffic
from fedvra.engines.evaluation import Evaluator
from fedvra.engines.experiment import Experiment, Plan, require_finite, subset
from fedvra.engines.pool import Engine, WorkerDiedError, make_engine, resolve_device, resolve_workers
from fedvra.engines.ray_engine import Ray
from fedvra.engines.recovery import bring_back
from fedvra.engines.server_state import ServerState
from fedvra.engines.worker import Board, LossesTask, Worker
from fedvra.local.check_schedule import CheckSchedule
from fedvra.local.protocol import SlowerPathError, StepPath
from fedvra.policies.refusals import Mask
from fedvra.problems.base import keeps_statistics_local, project, require_records, statistics_of, y_width_of
from fedvra.state.client_state import ClientState
from fedvra.state.client_store import ClientStore, MemoryBudget
from fedvra.state.row_books import RowBooks

log = logging.getLogger("fedvra")


class Federation:
    """A run in progress: ``round()`` runs one round and returns its record.

    >>> import fedvra as fv; costs = fv.Quadratic(torch.ones(4, 1, 1), torch.ones(4, 1))
    >>> fv.Federation(fv.Experiment(fv.FedAvg(), costs, fv.Full(), fv.Steps(1)), workers=1).round()["round"]
    1
    """

    def __init__(
        self,
        experiment: Experiment,
        workers: int | str = "auto",
        state_dtype: torch.dtype | None = None,
        memory_limit: int | None = None,
        state_folder: str | Path | None = None,
        engine: Ray | None = None,
    ) -> None:
        e = self.experiment = experiment
        settings = e.solver.of_run(e.batch_size, e.drop_last, e.seed)
        with one_thread():
            e.problem.check(e.data, settings)
            if e.privacy is not None:
                require_records(e.problem, e.data, settings)
        self.plan = Plan(e, told_samples(e))
        self.total, self.omega = self.plan.total, self.plan.omega
        cluster = None if engine is None else engine.open(workers)
        here = settings if cluster is None else replace(settings, device="cpu")
        device = resolve_device(here.device)
        x0 = e.start().to(device)
        aux = None if (found := statistics_of(e.problem, e.seed)) is None else found.to(device)
        self.state = ServerState(0, x0, torch.zeros_like(x0), aux, *np.zeros((2, self.total), dtype=np.int64))
        self.budgets = Budgets(self.plan, self.state)
        mean = e.deployment.needs_mean
        self.board = Board(len(x0), 0 if aux is None else len(aux), x0.dtype, device, mean)
        require(
            state_dtype is None or state_dtype.is_floating_point,
            f"state_dtype must be a floating-point dtype such as torch.bfloat16, got {state_dtype}.",
        )
        workers = resolve_workers(workers if cluster is None else 1, device)
        budget = MemoryBudget.half_of_what_is_free() if memory_limit is None else MemoryBudget(memory_limit)
        near, folder = MemoryBudget.near(device), None if state_folder is None else Path(state_folder)

        def store(kind: int, width: int, dtype: torch.dtype) -> RowBooks:
            if cluster is not None:
                return cluster.store(kind, width, dtype)
            return ClientStore(width, dtype, budget, folder, self.total, device, workers > 1, near, workers)

        self.clients = ClientState(
            duals=store(0, len(x0), state_dtype or x0.dtype),
            anchors=store(1, len(x0), x0.dtype) if e.algorithm.own_anchor else None,
            aux=store(2, len(aux), aux.dtype) if aux is not None and keeps_statistics_local(e.problem) else None,
            y=store(3, y_width, x0.dtype) if (y_width := y_width_of(e.problem, e.data)) else None,
            residuals=None if e.compress is None else store(4, len(x0), x0.dtype),
        )
        if cluster is not None:  # before our own solver borrows the model
            cluster.pack(e, settings, self.board, self.total, memory_limit, folder)
        with one_thread():
            self.solver = e.problem.solver(e.data, here)
            """The solver of the server's own process: works where there are no others, and looks at what they did."""
        self.take_path(self.solver.path.under(e.local, e.privacy is not None))
        self._checks = CheckSchedule(e.seed, self.plan.samples, e.batch_size)

        def make_worker() -> Worker:
            alone = workers == 1
            # A solver of its own: memory that is copied on write would cost a quarter of a round of small steps.
            solver = self.solver if alone else e.problem.solver(e.data, settings)
            return Worker(solver, self.board, self.clients.readers(own_process=alone), e)

        self._begun = self.state.x0, self.state.aux, self.state.path
        self.checkpoints: Path | None = None
        """Where there are checkpoints of this run, to bring back what is lost with a worker of a cluster."""
        self.engine: Engine = make_engine(make_worker, workers) if cluster is None else cluster
        if cluster is not None:
            cluster.start(partial(bring_back, self))
        self.evaluator = Evaluator(e, self.solver, self.engine, self._show)
        self.work = CohortWork(e, self.solver, self.engine, self.board)

    def close(self) -> None:
        """Stop the workers and give the model back. Client state stays readable while somebody holds it."""
        self.engine.close()
        self.solver.close()

    def processes(self) -> list[BaseProcess]:
        """The worker processes; none where the work is done in this one."""
        return self.engine.processes()

    def preflight(self) -> None:
        """Raise now what the next round would refuse (full participation lacking, gamma*lr > 1), before anything is written."""
        with one_thread():
            cohort = self.next_cohort()
            if len(cohort):
                self.plan.row(cohort, self.state.counts)

    def round(self) -> dict[str, Any]:
        """Run one round. An empty one leaves x0 and lam as they are.

        Departure from the paper: step 20 taken literally would keep moving x0 by -beta*lam with nobody answering.
        """
        started = time.perf_counter()
        with one_thread():
            cohort = self.next_cohort()
            record: dict[str, Any] = {"round": self.state.round + 1}
            path = self.state.path if self.state.round else None
            train_loss, counted, sent, steps = None, cohort, {}, 0
            if len(cohort):
                row = self.plan.row(cohort, self.state.counts)
                arrived, timed = self._arrived(cohort, row)
                record.update(timed)
                train_loss, counted_mask, steps = self._work_on_a_path(cohort, row, arrived)
                counted = subset(cohort, counted_mask)
                sent = traffic(self.experiment, self.state.x0, self.state.aux, row, len(cohort), int(arrived.sum()))
                if self.experiment.refuse is not None:
                    record["refused"] = cohort.clients[arrived & ~counted_mask].tolist()
                record.update(chosen(self.experiment.algorithm, cohort))
            elif self.experiment.system is not None:
                record.update(simulated_seconds=0.0, simulated_time=self.state.time)
            self._note(cohort)
            trained = time.perf_counter()
            require_finite(self.experiment.algorithm, self.state.x0, self.state.round)
            record.update(self.evaluator.record(self.state, self.second_block))
        record["path"] = self.state.path.name
        if self.state.path != path:  # in the first round, and where it changed
            record["path_reason"] = self.state.path.reason
        record.update(
            train_loss=train_loss,
            seconds=time.perf_counter() - started,
            seconds_training=trained - started,
            **{f"bytes_{way}": sent.get(way, 0) for way in ("up", "down", "up_original", "down_original")},
            local_steps=steps,
            cohort=cohort.clients.tolist(),
        )
        record.update(self.budgets.record())
        if len(counted) < len(cohort):
            record["lost"] = sorted(set(cohort.clients.tolist()) - set(counted.clients.tolist()))
        return record

    def begin(self) -> None:
        """Back to before the first round, but for the clients' rows."""
        state = self.state
        state.x0, state.aux, path = self._begun
        state.round, state.lam, state.memory, state.time = 0, torch.zeros_like(state.x0), Memory(), 0.0
        state.deployed = None
        state.counts[:] = state.private_steps[:] = 0
        self.take_path(path)

    def replay(self) -> None:
        """Run a round again: no callback is called, and there is no record."""
        cohort = self.next_cohort()
        if len(cohort):
            row = self.plan.row(cohort, self.state.counts)
            self._work_on_a_path(cohort, row, self._arrived(cohort, row)[0])
        self._note(cohort)

    def _note(self, cohort: Cohort) -> None:
        """The round is over for these clients."""
        self.budgets.note(cohort)
        self.state.counts[cohort.clients] += 1
        self.state.round += 1

    def next_cohort(self) -> Cohort:
        """Who takes part in the next round. Asking changes nothing, and may cost losses where the sampler wants them."""
        self._broadcast()
        drawn = self.plan.cohort(self.state.round, self.state.counts, self._losses, self.state.memory.numbers)
        return self.budgets.within(drawn)

    # -- before the work ---------------------------------------------------------------------------------------------

    def _broadcast(self) -> None:
        """Show the workers what clients are sent."""
        e, sent = self.experiment, Broadcast(self.state.x0, self.state.lam, self.state.aux)
        self.board.show(*sent.rounded(e.compress_down, e.seed, self.state.round))

    def _show(self, model: Deployed | None) -> None:
        """Show the workers a model as it is; None: x0."""
        x, aux = (self.state.x0, self.state.aux) if model is None else (model.x, model.aux)
        self.board.show(x, self.state.lam, aux)

    def _losses(self, clients: Ints) -> Floats:
        parts = np.array_split(clients, min(8, len(clients)))
        return np.concatenate(self.engine.map([LossesTask(part) for part in parts]))

    def _arrived(self, cohort: Cohort, row: rule.Coefficients) -> tuple[Mask, dict[str, Any]]:
        """Whose reply is neither lost (with probability ``drop``) nor late, and what the record says of the simulated time."""
        e, system = self.experiment, self.experiment.system
        arrived = np.ones(len(cohort), dtype=bool)
        if e.drop:
            arrived = stream(e.seed, Purpose.DROP, self.state.round).random(len(cohort)) >= e.drop
        if system is None:
            return arrived, {}
        sent = traffic(self.experiment, self.state.x0, self.state.aux, row, 1, 1)
        durations = system.durations(cohort, self.state.time, sent.get("up", 0), sent.get("down", 0))
        timing = system.judge(durations, arrived)
        self.state.time += timing.seconds
        timed: dict[str, Any] = {"simulated_seconds": timing.seconds, "simulated_time": self.state.time}
        if not timing.on_time.all():
            timed["late"] = cohort.clients[~timing.on_time].tolist()
        return arrived & timing.on_time, timed

    # -- the work and what the server makes of it ----------------------------------------------------------------------

    def _work_on_a_path(self, cohort: Cohort, row: rule.Coefficients, counted: Mask) -> tuple[float | None, Mask, int]:
        """Local work; where a fast path fails, all of it once more on a slower one, from then on."""
        check = self._checks.due(cohort, self.state.counts)
        while True:
            try:
                return self._local_work(cohort, row, counted, check)
            except SlowerPathError as failure:
                self.clients.rollback()
                self.take_path(failure.path)
                log.warning("round %d is done again, local steps are now %s", self.state.round + 1, failure.path)
            except WorkerDiedError:
                bring_back(self)

    def take_path(self, path: StepPath) -> None:
        """Have local steps taken this way from now on."""
        self.state.path = path
        self.solver.slower(path)

    def _local_work(
        self, cohort: Cohort, row: rule.Coefficients, arrived: Mask, check: Mask
    ) -> tuple[float | None, Mask, int]:
        """Have the local work done, take the server's step, commit.

        Returns the mean training loss of those who count, who does, and how many local steps there were.
        """
        staged = self.clients.stage(cohort.clients, duals=bool(row.alpha.any()))
        settle = partial(self.plan.settled, counts=self.state.counts)
        sums, counted, cohort, row = self.work.run(cohort, row, arrived, check, self.state.path, staged, settle)
        if sums is not None:
            self._server_step(cohort, counted, row, sums)
        self.clients.commit(cohort.clients[counted])
        if row.communicates and self.clients.anchors is not None:
            self.clients.anchors.clear()  # everybody starts from the new x0
        told = None if sums is None or self.experiment.privacy is not None else sums.loss
        return told, counted, int(cohort.steps.sum())

    def _server_step(self, cohort: Cohort, counted: Mask, row: rule.Coefficients, sums: Sums) -> None:
        state, e = self.state, self.experiment
        server = Server(state.x0, state.lam, state.aux, state.memory, state.deployed)
        made = server_round(server, cohort, counted, row, sums, e.algorithm, partial(project, e.problem), e.deployment)
        state.x0, state.lam, state.aux, state.memory, state.deployed = made

    # -- after the work ------------------------------------------------------------------------------------------------

    def second_block(self) -> dict[int, Tensor]:
        """y_i of every client that took part so far, as stored."""
        return {} if self.clients.y is None else dict(self.clients.y.items())
