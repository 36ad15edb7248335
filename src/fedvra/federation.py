"""The round loop of a federation that lives on this machine.

One round: sampler and work give the cohort with (client, p, Q, eta, omega) -> broadcast x0 -> workers: read state, local
steps, stage new state, partial sums -> server update -> commit those whose reply was counted -> evaluate -> a record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra import rule
from fedvra.algorithms.base import Algorithm
from fedvra.check_schedule import CheckSchedule
from fedvra.cohort import Cohort, Floats, Ints, mean_over
from fedvra.engines.local import Engine, make_engine, one_thread, resolve_device, resolve_workers
from fedvra.engines.singles import judged_work
from fedvra.engines.worker import Board, EvaluateTask, LocalTask, LossesTask, Slots, Worker, count_parts
from fedvra.errors import DivergedError, require
from fedvra.memory import Memory, chosen, remember
from fedvra.observers import Observer
from fedvra.planning import Experiment, Plan, subset
from fedvra.policies import auto
from fedvra.problems.base import Block, SlowerPathError, StepPath
from fedvra.refusals import Mask
from fedvra.segments import RowReader
from fedvra.store import ClientStore, MemoryBudget
from fedvra.streams import Purpose, stream

log = logging.getLogger("fedvra")


@dataclass
class ServerState:
    """What the server carries from round to round; with the client store, all that a checkpoint holds."""

    round: int
    x0: Tensor
    lam: Tensor
    aux: Tensor | None
    counts: Ints
    """How often each client took part."""
    memory: Memory = field(default_factory=Memory)
    """What an algorithm that adapts carries from round to round."""
    path: StepPath = field(default_factory=lambda: StepPath(""))
    """The way in which all workers take local steps."""


class Federation:
    """A run in progress: ``round()`` plays one round and returns its record."""

    def __init__(
        self,
        experiment: Experiment,
        workers: int | str = "auto",
        state_dtype: torch.dtype | None = None,
        memory_limit: int | None = None,
        state_folder: str | Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        e = self.experiment = experiment
        self.observers = tuple(observers)
        settings = replace(e.solver, batch_size=e.batch_size, drop_last=e.drop_last, seed=e.seed)
        with one_thread():
            e.problem.check(e.data, settings)
        self.plan = Plan(e, e.problem.samples(e.data))
        self.total, self.omega = self.plan.total, self.plan.omega
        device = resolve_device(settings.device)
        x0 = e.start().to(device)
        aux = e.problem.initial_aux(e.seed)
        aux = None if aux is None else aux.to(device)
        self.state = ServerState(0, x0, torch.zeros_like(x0), aux, np.zeros(self.total, dtype=np.int64))
        self.board = Board(len(x0), 0 if aux is None else len(aux), x0.dtype, device)
        require(
            state_dtype is None or state_dtype.is_floating_point,
            f"state_dtype must be a floating-point dtype such as torch.bfloat16, got {state_dtype}.",
        )
        budget = MemoryBudget.half_of_what_is_free() if memory_limit is None else MemoryBudget(memory_limit)
        folder = None if state_folder is None else Path(state_folder)
        self.stores = {"duals": ClientStore(len(x0), state_dtype or x0.dtype, budget, folder, self.total, device)}
        if e.algorithm.own_anchor:
            self.stores["anchors"] = ClientStore(len(x0), x0.dtype, budget, folder, self.total, device)
        if aux is not None and e.problem.aux_is_local:
            self.stores["aux"] = ClientStore(len(aux), aux.dtype, budget, folder, self.total, device)
        y_width = e.problem.y_width(e.data)
        if y_width:
            self.stores["y"] = ClientStore(y_width, x0.dtype, budget, folder, self.total, device)
        workers = resolve_workers(workers, device)
        with one_thread():
            self.solver = e.problem.solver(e.data, settings)
            """The solver of the server's own process: works where there are no others, and looks at what they did."""
        self.state.path = self.solver.path
        self._checks = CheckSchedule(e.seed, self.plan.samples, e.batch_size)

        def make_worker() -> Worker:
            if workers == 1:
                return Worker(self.solver, self.board, dict(self.stores))
            readers = {k: RowReader(s.width, s.dtype, s.rows_per_segment) for k, s in self.stores.items()}
            # One of its own: memory that is copied on write would cost a quarter of a round of small steps.
            return Worker(e.problem.solver(e.data, settings), self.board, readers)

        self.engine: Engine = make_engine(make_worker, workers)

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
        """Play one round. An empty one leaves x0 and lam as they are.

        Departure from the paper: step 20 taken literally would go on moving x0 by -beta*lam with nobody answering.
        """
        started = time.perf_counter()
        with one_thread():
            seen = [observer.before(self) for observer in self.observers]
            watched = time.perf_counter() - started
            cohort = self.next_cohort()
            record: dict[str, Any] = {"round": self.state.round + 1}
            path = self.state.path if self.state.round else None
            train_loss, counted, sent = None, cohort, {}
            if len(cohort):
                row = self.plan.row(cohort, self.state.counts)
                arrived = self._counted(cohort)
                train_loss, counted_mask = self._work_on_a_path(cohort, row, arrived)
                counted = subset(cohort, counted_mask)
                sent = self._traffic(cohort, subset(cohort, arrived), row)
                if self.experiment.refuse is not None:
                    record["refused"] = cohort.clients[arrived & ~counted_mask].tolist()
                record.update(chosen(self.experiment.algorithm, cohort))
            self.state.counts[cohort.clients] += 1
            self.state.round += 1
            trained = time.perf_counter()
            self._check_finite()
            record.update(self._evaluate())
            for observer, what in zip(self.observers, seen, strict=True):
                record.update(observer.after(self, what))
        record["path"] = self.state.path.name
        if self.state.path != path:  # in the first round, and where it changed
            record["path_reason"] = self.state.path.reason
        record.update(
            train_loss=train_loss,
            seconds=time.perf_counter() - started,
            seconds_training=trained - started - watched,
            bytes_up=sent.get("up", 0),
            bytes_down=sent.get("down", 0),
            bytes_up_original=sent.get("up_original", 0),
            bytes_down_original=sent.get("down_original", 0),
            local_steps=int(cohort.steps.sum()),
            cohort=cohort.clients.tolist(),
        )
        if len(counted) < len(cohort):
            record["lost"] = sorted(set(cohort.clients.tolist()) - set(counted.clients.tolist()))
        return record

    def next_cohort(self) -> Cohort:
        """Who takes part in the next round. Asking changes nothing, and may cost losses where the sampler wants them."""
        self._broadcast()
        return self.plan.cohort(self.state.round, self.state.counts, self._losses, self.state.memory.numbers)

    # -- before the work ---------------------------------------------------------------------------------------------

    def _broadcast(self) -> None:
        self.board.x0.copy_(self.state.x0)
        self.board.lam.copy_(self.state.lam)
        if self.board.aux is not None and self.state.aux is not None:
            self.board.aux.copy_(self.state.aux)

    def _losses(self, clients: Ints) -> Floats:
        return np.concatenate(
            self.engine.map([LossesTask(part) for part in np.array_split(clients, min(8, len(clients)))])
        )

    def _counted(self, cohort: Cohort) -> Mask:
        """Whose reply will be counted: all, but for those lost at random with probability ``drop``."""
        e = self.experiment
        if not e.drop:
            return np.ones(len(cohort), dtype=bool)
        return stream(e.seed, Purpose.DROP, self.state.round).random(len(cohort)) >= e.drop

    # -- the work and what the server makes of it ----------------------------------------------------------------------

    def _work_on_a_path(self, cohort: Cohort, row: rule.Coefficients, counted: Mask) -> tuple[float | None, Mask]:
        """Local work; where a fast path fails, all of it once more on a slower one, from then on."""
        check = self._checks.due(cohort, self.state.counts)
        while True:
            try:
                return self._local_work(cohort, row, counted, check)
            except SlowerPathError as failure:
                for store in self.stores.values():
                    store.rollback()
                self.take_path(failure.path)
                log.warning("round %d is done again, local steps are now %s", self.state.round + 1, failure.path)

    def take_path(self, path: StepPath) -> None:
        """Have local steps taken this way from now on."""
        self.state.path = path
        self.solver.slower(path)

    def _local_work(
        self, cohort: Cohort, row: rule.Coefficients, counted: Mask, check: Mask
    ) -> tuple[float | None, Mask]:
        """Have the local work done, take the server's step, commit; the mean training loss of those who count, and who does."""
        refuse = self.experiment.refuse
        keep = counted.astype(np.float64)
        order = np.argsort(-cohort.steps, kind="stable")  # long work first, so that workers finish together
        width = self.solver.first_width if cohort.steps.max() == 1 else self.solver.width
        parts = np.array_split(order, count_parts(len(cohort), width) if refuse is None else len(cohort))
        slots = {name: self._stage(name, cohort, row) for name in ("duals", "anchors", "aux", "y")}
        ratio = _common_ratio(row.alpha, row.w) if "anchors" not in self.stores else None
        tasks = [
            LocalTask(
                part=k,
                block=Block(
                    cohort.round,
                    self.experiment.seed,
                    cohort.clients[part],
                    cohort.steps[part],
                    cohort.eta[part],
                    self.state.path.name,
                    check[part],
                ),
                gamma=row.gamma[part],
                alpha=row.alpha[part],
                dual_weight=(keep * cohort.omega * row.alpha)[part],
                model_weight=(keep * cohort.omega * row.w)[part],
                dual_ratio=ratio,
                aux_weight=(keep * cohort.omega)[part],
                sigma=row.sigma,
                decay=self.experiment.problem.decay,
                anchor_kappa=row.kappa,
                communicates=row.communicates,
                duals=_slots_of(slots["duals"], part),
                anchors=_slots_of(slots["anchors"], part),
                aux=_slots_of(slots["aux"], part),
                y=_slots_of(slots["y"], part),
            )
            for k, part in enumerate(parts)
        ]
        losses = np.empty(len(cohort))
        if refuse is None:
            results, sums = self.engine.map(tasks), len(parts)
        else:
            results, counted = judged_work(self.engine, self.board, tasks, refuse, cohort, row, order, counted)
            keep, sums = counted.astype(np.float64), 1
        for part, values in zip(parts, results, strict=True):
            losses[part] = values
        loss = mean_over(subset(cohort, counted), losses[counted]) if counted.any() else None
        if loss is not None:
            self._server_step(cohort, row, keep, sums, ratio, loss)
        for name, staged in slots.items():
            if staged is not None:
                self.stores[name].commit(cohort.clients[counted])
                self.stores[name].rollback()
        if row.communicates and "anchors" in self.stores:
            self.stores["anchors"].clear()  # everybody starts from the new x0
        return loss, counted

    def _stage(self, name: str, cohort: Cohort, row: rule.Coefficients) -> Slots | None:
        if name not in self.stores or (name == "duals" and not (row.alpha.any() or len(self.stores["duals"]))):
            return None
        read, write = self.stores[name].stage(cohort.clients)
        return Slots(read, write, self.stores[name].addresses())

    def _server_step(
        self, cohort: Cohort, row: rule.Coefficients, keep: Floats, parts: int, ratio: float | None, loss: float
    ) -> None:
        state, board = self.state, self.board
        model_sum = board.sums[:parts, 0].sum(0)
        dual_sum = board.sums[:parts, 1].sum(0) if ratio is None else ratio * model_sum
        totals = rule.Totals(float(keep @ cohort.omega), float(keep @ (cohort.omega * cohort.steps)))
        state.lam = rule.server_dual(state.lam, dual_sum, row.sigma, totals.omega)
        if row.communicates:
            state.x0 = rule.server_model(
                state.x0, state.lam, model_sum, row.scale(totals), row.kappa, self.experiment.problem.project
            )
        state.memory = remember(self.experiment.algorithm, state.memory, cohort, model_sum, state.lam, loss)
        if state.aux is not None and board.aux_sums is not None:
            state.aux = board.aux_sums[:parts].sum(0) / totals.omega

    def _traffic(self, cohort: Cohort, counted: Cohort, row: rule.Coefficients) -> dict[str, int]:
        """Bytes of the round: as sent here (one vector and one scalar up; lam goes down where sigma = 1), and as published."""
        if not row.communicates:
            return {}
        vector = self.state.x0.numel() * self.state.x0.element_size()
        scalar = 8
        aux = 0 if self.state.aux is None else self.state.aux.numel() * self.state.aux.element_size()
        original = self.experiment.algorithm.original
        return {
            "up": len(counted) * (vector + aux + scalar),
            "down": len(cohort) * ((2 if row.sigma else 1) * vector + aux),
            "up_original": len(counted) * (original.up * vector + aux),
            "down_original": len(cohort) * (original.down * vector + aux),
        }

    # -- after the work ------------------------------------------------------------------------------------------------

    def _check_finite(self) -> None:
        if not bool(torch.isfinite(self.state.x0.sum())):  # one pass: a NaN or an infinity shows in the sum
            raise DivergedError(
                f"{self.experiment.algorithm.label} diverged in round {self.state.round}: x0 is no longer finite; "
                f"{_likely_knob(self.experiment.algorithm)}",
                self.state.round,
            )

    def _evaluate(self) -> dict[str, Any]:
        """The test data, and whatever else the problem measures."""
        every = self.experiment.eval_every
        found: dict[str, Any] = {"test_accuracy": None, "test_loss": None}
        if not every or self.state.round % every:
            return found
        if self.solver.test_parts:
            self._broadcast()
            parts = self.engine.map([EvaluateTask(k) for k in range(self.solver.test_parts)])
            count = sum(p.samples for p in parts)
            correct = sum(p.correct for p in parts)
            found["test_accuracy"] = None if np.isnan(correct) else correct / count
            found["test_loss"] = sum(p.loss for p in parts) / count
        found.update(self.solver.measure(self.state.x0, self.second_block()))
        return found

    def second_block(self) -> dict[int, Tensor]:
        """y_i of every client that took part so far, as stored."""
        return dict(self.stores["y"].items()) if "y" in self.stores else {}


def _slots_of(slots: Slots | None, part: Ints) -> Slots | None:
    return None if slots is None else Slots(slots.read[part], slots.write[part], slots.segments)


def _common_ratio(alpha: Floats, w: Floats) -> float | None:
    """alpha_i / w_i where it is one number for all: the sums of steps 19 and 20 are then multiples of each other."""
    if not w.all():
        return None
    ratio = alpha / w
    return float(ratio[0]) if np.all(ratio == ratio[0]) else None


def _likely_knob(algorithm: Algorithm) -> str:
    knobs = [name for name in ("a", "d", "global_lr") if name in algorithm.__dataclass_fields__]
    if getattr(algorithm, "a", None) is auto:
        return "try a smaller lr."
    return f"try a smaller {' or '.join([*knobs, 'lr'])}."
