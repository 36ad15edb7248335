"""The server side: any algorithm of this library as a Flower strategy whose state survives whatever a federation does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from torch import Tensor

from fedvra import rule
from fedvra.algorithms.base import Algorithm
from fedvra.cohort import Cohort, Floats, Ints, Setting
from fedvra.errors import UsageError, require
from fedvra.flat import FlatSpec
from fedvra.flower.books import Books
from fedvra.flower.counting import count
from fedvra.flower.protocol import Answer, Errand, Order, Status, to_array
from fedvra.flower.repair import Audit, audit, repair
from fedvra.flower.roster import Roster, exchange, make_message, match, read_reply
from fedvra.flower.uploads import RefusedUploadError, Upload, checked_upload
from fedvra.memory import chosen
from fedvra.planning import Experiment, Plan
from fedvra.problems.base import Problem
from fedvra.samplers import Sampler
from fedvra.work import Work

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Strategy(FlowerStrategy):
    """Steps 16-20 on a federation of Flower nodes; samplers, work and settings are those of :func:`fedvra.simulate`.

    With the same seed and cohorts x0 is that of the simulator, up to rounding. A client whose reply does not count (lost,
    late, failed, refused) is left out of the round, and its dual stays as it was.

    Args:
        algorithm: e.g. ``fv.FedVRA(gamma=0.1, a=10)``.
        problem: gives the start x0 and the projection; the clients bring their own data.
        clients: N. Node ``partition-id=i`` is client i; all must be connected before the first round.
        folder: where the server keeps its books. A run on a folder that holds some goes on from there.
        weights: "equal", "samples" or one number per client.
        max_norm: refuse uploads x_i - x0 of greater Euclidean norm; None sets no bound.
        shadow: keep a copy of every lam_i here (N*P numbers on this disk), so that a client that loses its own can be
            restored at once and exactly. Without it the others are asked for theirs, see ``fedvra.flower.repair``.
        wait: seconds to wait for the clients to connect.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        problem: Problem,
        clients: int,
        sampler: Sampler,
        work: Work,
        folder: str | Path,
        lr: Setting = 0.01,
        batch_size: int | None = None,
        seed: int = 0,
        weights: Any = "equal",
        x_init: Tensor | None = None,
        max_norm: float | None = None,
        shadow: bool = False,
        wait: float = 600.0,
    ) -> None:
        require(clients >= 1, f"clients must be >= 1, got {clients}.")
        require(max_norm is None or max_norm > 0, f"max_norm must be > 0 or None, got {max_norm}.")
        self.experiment = Experiment(
            algorithm, problem, sampler, work, None, lr, batch_size, seed, weights, x_init, eval_every=0
        )
        self.folder, self.max_norm, self.shadow, self.wait = Path(folder), max_norm, shadow, wait
        x0 = self.experiment.start()
        identity = {"algorithm": algorithm.name, "seed": seed, "clients": clients, "parameters": x0.numel()}
        self.books = Books(
            identity,
            x0,
            torch.zeros_like(x0),
            problem.initial_aux(seed),
            counts=np.zeros(clients, dtype=np.int64),
            samples=np.zeros(clients, dtype=np.int64),
        )
        Plan(self.experiment, np.ones(clients, dtype=np.int64))  # what it would refuse is known before anybody is asked
        self.roster = Roster(clients, lambda: self.order(Errand.HELLO, -1), self._accept)
        self.records: list[dict[str, Any]] = []
        """One per round played by this server: round, cohort, counted, lost (client -> why), train_loss, strength."""
        self.lost: set[int] = set()
        """Clients whose state is lost and not yet restored; they sit out."""
        self.timeout = 3600.0
        self._number = 0
        self._sent: list[tuple[Message, int]] = []
        self._cohort: Cohort | None = None
        self._row: rule.Coefficients | None = None

    # -- a run ------------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Play rounds up to number ``num_rounds``, going on from what the folder holds.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: the model's state_dict to start from; None takes the problem's own start.
            timeout: seconds a client has to answer in each round.
            evaluate_fn: called with (round, the model's state_dict) after each round; its figures go into the result.
        """
        require(
            train_config is None and evaluate_config is None,
            "fedvra.flower.Strategy sends its own configuration: leave train_config and evaluate_config out.",
        )
        self.timeout = timeout
        self.open(grid, initial_arrays)
        result = Result()
        while self.books.round < num_rounds:
            log(INFO, "[ROUND %s/%s]", self.books.round + 1, num_rounds)
            figures = self.play(grid)
            result.train_metrics_clientapp[self.books.round] = figures
            if evaluate_fn is not None and (found := evaluate_fn(self.books.round, self.arrays())) is not None:
                log(INFO, "\t%s", found)
                result.evaluate_metrics_serverapp[self.books.round] = found
        result.arrays = self.arrays()
        return result

    def open(self, grid: Grid, initial_arrays: ArrayRecord | None = None) -> None:
        """Read the books, or begin them, and wait for the clients."""
        if self.books.resume(self.folder):
            log(INFO, "going on after round %s from %s", self.books.round, self.folder)
        elif initial_arrays is not None:
            module = self.experiment.problem.to_module(self.books.x0, self.books.aux)
            module.load_state_dict(initial_arrays.to_torch_state_dict())
            self.books.x0 = FlatSpec.of_parameters(module).gather(module)
        self.books.incarnation += 1
        self.save()  # before anything is sent: no message of this incarnation can be mistaken for one of the last
        known = bool(self.books.samples.all())
        self.roster.gather(grid, 1 if known else self.roster.total, self.wait, self.timeout)
        self.save()

    def play(self, grid: Grid) -> MetricRecord:
        """One round, written down when this returns."""
        self.roster.refresh(grid, self.timeout)
        if self.lost:
            repair(self, grid)
        messages = list(self.configure_train(self.books.round + 1, ArrayRecord(), ConfigRecord(), grid))
        _, figures = self.aggregate_train(self.books.round + 1, exchange(grid, messages, self.timeout))
        assert figures is not None
        return figures

    def audit(self, grid: Grid) -> Audit:
        """Ask every client for its dual and measure \\|lam - sum_i omega_i*lam_i\\|; see :class:`Audit`."""
        self.roster.refresh(grid, self.timeout)
        return audit(self, grid)

    # -- one round --------------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next round. What is broadcast comes from the books, not from ``arrays`` or ``config``."""
        books, plan = self.books, self.plan
        cohort = self._cohort = plan.cohort(
            books.round, books.counts, lambda who: self._losses(grid, who), books.memory.numbers
        )
        self._sent = []
        if not len(cohort):
            return []
        row = self._row = plan.row(cohort, books.counts)
        require(row.communicates, "rounds without communication need the simulator: set skip to 0.")
        vectors = {"x0": books.x0, **({"lam": books.lam} if row.sigma else {})}
        if books.aux is not None:
            vectors["aux"] = books.aux
        for k, client in enumerate(cohort.clients.tolist()):
            if client in self.lost or client not in self.roster.nodes:
                continue
            order = replace(
                self.order(Errand.TRAIN, client),
                steps=int(cohort.steps[k]),
                eta=float(cohort.eta[k]),
                gamma=float(row.gamma[k]),
                alpha=float(row.alpha[k]),
                sigma=float(row.sigma),
            )
            order = replace(order, arrays={**order.arrays, **vectors})
            self._sent.append((make_message(order, self.roster.nodes[client], self.timeout), client))
        return [message for message, _ in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count what can be counted, take the server's step, write the books."""
        cohort, books = self._cohort, self.books
        assert cohort is not None
        uploads: dict[int, Upload] = {}
        why = {int(c): "awaits repair" if c in self.lost else "is not connected" for c in cohort.clients}
        for (_, client), reply in zip(self._sent, match([m for m, _ in self._sent], replies), strict=True):
            found = self._judge(client, read_reply(reply))
            if isinstance(found, Upload):
                uploads[client] = found
                del why[client]
            else:
                why[client] = found
        for client, reason in why.items():
            log(WARNING, "round %s: client %s %s", books.round + 1, client, reason)
        if why and self.experiment.algorithm.everyone_takes_part:
            uploads = {}  # the method is not defined for less: the round is void
        loss = None
        if uploads:
            assert self._row is not None
            loss = count(books, self.experiment, cohort, self._row, uploads, self.shadow)
        books.counts[cohort.clients] += 1
        books.round += 1
        self.save()
        return self.arrays(), self._record(cohort, sorted(uploads), why, loss)

    def _judge(self, client: int, answer: Answer | str) -> Upload | str:
        """An upload to be counted, or why there is none."""
        if isinstance(answer, str):
            return answer
        if answer.status == Status.LOST:
            self.lost.add(client)
            return f"has lost its state and will be repaired: {answer.reason}"
        if answer.status != Status.DONE:
            return f"did not do the work: {answer.reason}"
        try:
            return checked_upload(answer, client, self.books.x0, self.books.aux, self.max_norm)
        except RefusedUploadError as refusal:
            return f"is refused: {refusal}"

    def _record(self, cohort: Cohort, counted: list[int], why: dict[int, str], loss: float | None) -> MetricRecord:
        picked = chosen(self.experiment.algorithm, cohort)
        record = {
            "round": self.books.round,
            "cohort": cohort.clients.tolist(),
            "counted": counted,
            "lost": why,
            "train_loss": loss,
            **picked,
        }
        self.records.append(record)
        shown = float("nan") if loss is None else loss
        log(INFO, "round %s: %s of %s counted, train loss %.4f", self.books.round, len(counted), len(cohort), shown)
        return MetricRecord({"train_loss": shown, "counted": len(counted), "cohort": len(cohort), **picked})

    # -- parts ------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """Who works how, once everybody's n_i is known."""
        return Plan(self.experiment, self.books.samples)

    def order(self, errand: Errand, client: int) -> Order:
        """An errand for one client with a number of its own, and what is needed to settle its books."""
        self._number += 1
        books, restore = self.books, self.books.restores.get(client)
        return Order(
            errand=errand,
            experiment=books.experiment,
            total=self.roster.total,
            client=client,
            incarnation=books.incarnation,
            number=self._number,
            counted=books.tickets.get(client, ""),
            round=books.round,
            seed=self.experiment.seed,
            batch_size=self.experiment.batch_size or 0,
            arrays={} if restore is None else {"restore": restore},
        )

    def ask(self, grid: Grid, orders: list[Order]) -> list[Answer | str]:
        """Send these orders to their clients; each one's answer, or why there is none."""
        reachable = [order for order in orders if order.client in self.roster.nodes]
        messages = [make_message(o, self.roster.nodes[o.client], self.timeout) for o in reachable]
        replies = match(messages, exchange(grid, messages, self.timeout))
        found = {o.client: read_reply(reply) for o, reply in zip(reachable, replies, strict=True)}
        return [found.get(order.client, "is not connected") for order in orders]

    def save(self) -> None:
        """Write the books; when this returns they will survive a crash."""
        self.books.save(self.folder)

    def _accept(self, answer: Answer) -> str | None:
        known = int(self.books.samples[answer.client])
        if answer.samples < 1 or known not in (0, answer.samples):
            return f"it holds {answer.samples} samples, at the start it had {known}"
        self.books.samples[answer.client] = answer.samples
        counted = self.books.tickets.get(answer.client, "")
        if counted not in (answer.committed, answer.pending) and answer.client not in self.books.restores:
            self.lost.add(answer.client)
        return None

    def _losses(self, grid: Grid, clients: Ints) -> Floats:
        """f_i(x0), asked of the clients; whoever does not answer comes last."""
        orders = [replace(self.order(Errand.LOSS, int(c)), arrays={"x0": self.books.x0}) for c in clients]
        answers = self.ask(grid, orders)
        return np.array([-np.inf if isinstance(a, str) or a.status != Status.DONE else a.loss for a in answers])

    def arrays(self) -> ArrayRecord:
        """The model as Flower's own strategies have it, a state_dict; the flat x0 where there is no module."""
        try:
            module = self.experiment.problem.to_module(self.books.x0, self.books.aux)
        except UsageError:
            return ArrayRecord({"x0": to_array(self.books.x0)})
        return ArrayRecord(module.state_dict())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked: the model is evaluated where the test data are, by ``evaluate_fn``."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Log what is run."""
        log(INFO, "\t%r, %s clients, books in %s", self.experiment.algorithm, self.roster.total, self.folder)
