"""The server side: any algorithm of this library as a Flower strategy whose state survives whatever a federation does.

Longer than other files: a third of it is the list of options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from torch import Tensor

from fedvra.algorithms.base import Algorithm
from fedvra.callbacks.base import Callback
from fedvra.callbacks.function import as_callbacks
from fedvra.compress.base import as_compressor, as_download
from fedvra.core import rule
from fedvra.core.cohort import Cohort, Setting
from fedvra.core.compressor import Compressor
from fedvra.core.deploy import Deploy, parse_deploy
from fedvra.core.errors import require
from fedvra.core.members import Members
from fedvra.core.optimisers import PLAIN, LocalOptimiser
from fedvra.core.record_dp import RecordDP, as_privacy
from fedvra.core.validation import check_whole
from fedvra.engines.experiment import Experiment, Plan
from fedvra.flower.count_uploads import count_uploads
from fedvra.flower.course import Evaluate, as_arrays, note_round, results_of_nodes, run_rounds
from fedvra.flower.errands import losses, make_order, train_orders
from fedvra.flower.evaluating import collected, evaluation_messages
from fedvra.flower.exchange import exchange
from fedvra.flower.mask_table import MaskedSum
from fedvra.flower.masked_audit import masked_audit
from fedvra.flower.masked_members import settle_masked_members
from fedvra.flower.masked_server import check_secure, count_masked, masked_orders
from fedvra.flower.members import requests, settle_members
from fedvra.flower.private import read_key
from fedvra.flower.protocol import Answer, Errand
from fedvra.flower.repair import Audit, audit, repair
from fedvra.flower.roster import Roster, make_message
from fedvra.flower.run_files import export_model
from fedvra.flower.server_books import Books
from fedvra.local.flat import FlatSpec
from fedvra.policies.refusals import Refusal
from fedvra.problems.base import Problem, frozen_of, module_of, statistics_of
from fedvra.samplers import Sampler
from fedvra.samplers.work import Work
from fedvra.state.frozen import frozen_hash


class Strategy(FlowerStrategy):
    """Steps 16-20 on a federation of Flower nodes; samplers, work and settings are those of :func:`fedvra.simulate`.

    With the same seed and cohorts x0 is that of the simulator, up to rounding. A client whose reply does not count (lost,
    late, failed, refused) is left out of the round, and its dual stays as it was.

    Args:
        algorithm: e.g. ``fv.FedVRA(gamma=0.1, a=10)``.
        problem: gives the start x0 and the projection; the clients bring their own data.
        clients: N. Node ``partition-id=i`` is client i; all must be connected before the first round.
        max_clients: room for others, numbered from N on, who join while it runs; tables have as many entries. None: for nobody.
        folder: where the server keeps its state. A run on a folder that has some resumes from it.
        weights: "equal", "samples" or one number per client.
        max_norm: refuse uploads x_i - x0 of greater Euclidean norm; None sets no bound.
        local: what takes the clients' steps, as in ``simulate``; ``fv.Torch(...)`` must be given to the clients as well.
        refuse: which of a round's uploads are not counted, e.g. ``fv.MedianNorm(3)`` or ``fv.MultiKrum(2)``; None: all are.
        compress, compress_down: what is done to uploads and downloads, as in ``simulate``.
        privacy: what clients do to the gradients of records, as in ``simulate``; one with a rule of its own goes by that.
        secure: ``MaskedSum(least=3, bits=16)`` shows this server sums of uploads only; see docs/privacy.md.
        max_samples: refuse clients that say they hold more; with weights="samples" it is what they may claim.
        audit_every: compare lam with the clients' duals every so many rounds; 0 never.
        bind_keys: a client number belongs to the key of the node that claimed it first. False where SuperNodes are not
            authenticated and come back with another key.
        key_file: a secret of 32 bytes or more, kept apart from ``folder``; the books then carry a MAC.
        shadow: keep a copy of every lam_i here (N*P numbers on this disk), so that a client that loses its own can be
            restored at once and exactly. Without it the others are asked for theirs, see ``fedvra.flower.repair``.
        wait: seconds to wait for the clients to connect.
        max_void: end the run after so many rounds in a row in which nobody counted.
        evaluate_every: have the nodes test the model to deploy on their own test data every so many rounds; 0 never.
        evaluate_clients: ask so many of them, drawn anew each time; None: all that are connected.
        metrics: the names of those metrics of the nodes that are wanted.
        callbacks: look on as in ``simulate``, e.g. ``fv.Patience(20, metric="clients/accuracy/by_samples")``.
        deploy: which model the result is and the nodes test, as in ``simulate``: ``"x0"``, ``"mean"`` or ``"ema:0.9"``.
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
        local: LocalOptimiser = PLAIN,
        batch_size: int | None = None,
        drop_last: bool = False,
        seed: int = 0,
        weights: Any = "equal",
        x_init: Tensor | None = None,
        max_clients: int | None = None,
        max_norm: float | None = None,
        refuse: Refusal | None = None,
        compress: Compressor | str | None = None,
        compress_down: Compressor | str | None = None,
        privacy: RecordDP | str | None = None,
        secure: MaskedSum | None = None,
        max_samples: int = 10**9,
        audit_every: int = 25,
        bind_keys: bool = True,
        key_file: str | Path | None = None,
        shadow: bool = False,
        wait: float = 600.0,
        max_void: int = 10,
        evaluate_every: int = 0,
        evaluate_clients: int | None = None,
        metrics: Iterable[str] = (),
        callbacks: Sequence[Callback | Callable[[dict[str, Any]], object]] = (),
        deploy: Deploy | str | None = None,
    ) -> None:
        require(clients >= 1, f"clients must be >= 1, got {clients}.")
        require(max_norm is None or max_norm > 0, f"max_norm must be > 0 or None, got {max_norm}.")
        check_whole("audit_every", audit_every, least=0)
        self.experiment = Experiment(
            algorithm,
            problem,
            sampler,
            work,
            lr=lr,
            batch_size=batch_size,
            seed=seed,
            weights=weights,
            x_init=x_init,
            eval_every=max(1, evaluate_every),
            drop_last=drop_last,
            refuse=refuse,
            local=local,
            compress=as_compressor(compress),
            compress_down=as_download(compress_down),
            deploy=None if deploy is None else parse_deploy(deploy),
            privacy=as_privacy(privacy),
        )
        self.secure = check_secure(secure, self.experiment, clients, shadow, max_norm, evaluate_every)
        self.folder, self.max_norm, self.shadow, self.wait = Path(folder), max_norm, shadow, wait
        self.max_samples, self.audit_every, self.bind_keys = max_samples, audit_every, bind_keys
        self.max_void = check_whole("max_void", max_void)
        self.evaluate_every = check_whole("evaluate_every", evaluate_every, least=0)
        self.evaluate_clients, self.metric_names = evaluate_clients, list(metrics)
        self.callbacks, self.key = as_callbacks(callbacks), read_key(key_file)
        x0 = self.experiment.start()
        self.frozen = frozen_hash(frozen_of(problem, seed))
        """What is frozen in the model, by its hash: every order names it, and no node works on another."""
        identity = {"algorithm": algorithm.name, "seed": seed, "clients": clients, "parameters": x0.numel()}
        members = Members.founders(clients, max_clients)
        identity |= {"secure": True} if secure else {}
        self.books = Books.begin(identity, x0, statistics_of(problem, seed), members)
        numbers = len(members.joined)
        Plan(self.experiment, np.ones(numbers, dtype=np.int64), members)  # what it would refuse is known beforehand
        self.roster = Roster(numbers, lambda: make_order(self, Errand.HELLO, -1), self._accept)
        self.records: list[dict[str, Any]] = []
        """One per round: round, cohort, counted, lost (client -> why), refused by ``refuse``, train_loss, in some the audit."""
        self.lost: set[int] = set()  # clients whose state is lost and not yet restored; they sit out
        self.leaving: set[int] = set()  # clients that are to leave for good; they sit out too
        self.changes: dict[str, Any] = {}  # of the members, before the last round
        self.said: dict[int, int] = {}  # how many samples each client said last that it holds
        self.spent: set[int] = set()  # clients who said that their privacy budget is; they are not asked again
        self.timeout, self.number = 3600.0, 0  # the latter of the order sent last
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
        """Run ``num_rounds`` rounds in all, resuming from the folder's last checkpoint; void rounds do not use them up.

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
        return run_rounds(self, grid, num_rounds, evaluate_fn, self.callbacks)

    def open(self, grid: Grid, initial_arrays: ArrayRecord | None = None) -> None:
        """Read the books, or begin them, and wait for the clients."""
        if self.books.resume(self.folder, self.key):
            log(INFO, "resuming after round %s from %s", self.books.round, self.folder)
        elif initial_arrays is not None:
            module = module_of(self.experiment.problem, self.books.x0, self.books.aux)
            module.load_state_dict(initial_arrays.to_torch_state_dict())
            self.books.x0 = FlatSpec.of_parameters(module).gather(module)
        self.books.incarnation += 1
        self.save()  # before anything is sent: no message of this incarnation can be mistaken for one of the last
        unknown = set(np.flatnonzero(self.books.members.present & (self.books.samples == 0)).tolist())
        self.roster.gather(grid, unknown - requests(self.folder, self.books, self.key), self.wait, self.timeout)
        self.save()

    def play(self, grid: Grid) -> MetricRecord:
        """One round, written down when this returns."""
        self.roster.refresh(grid, self.timeout)
        if self.lost and self.secure is None:
            repair(self, grid)
        self.changes = (settle_masked_members if self.secure else settle_members)(self, grid)
        messages = list(self.configure_train(self.books.round + 1, ArrayRecord(), ConfigRecord(), grid))
        _, figures = self.aggregate_train(self.books.round + 1, exchange(grid, messages, self.timeout))
        assert figures is not None
        if self.audit_every and self.books.round % self.audit_every == 0:
            found = self.audit(grid)
            self.records[-1]["audit"] = asdict(found)
            found.tell()
        return figures

    def audit(self, grid: Grid) -> Audit:
        """Ask every client for its dual and measure \\|lam - sum_i omega_i*lam_i\\|; see :class:`Audit`."""
        self.roster.refresh(grid, self.timeout)
        return (masked_audit if self.secure else audit)(self, grid)

    # -- one round --------------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next round. What is broadcast comes from the books, not from ``arrays`` or ``config``."""
        books, plan = self.books, self.plan
        cohort = self._cohort = plan.cohort(books.round, books.counts, losses(self, grid), books.memory.numbers)
        self._sent = []
        if not len(cohort):
            return []
        row = self._row = plan.row(cohort, books.counts)
        require(row.communicates, "rounds without communication need the simulator: set skip to 0.")
        for order in (train_orders if self.secure is None else masked_orders)(self, cohort, row):
            message = make_message(order, self.roster.nodes[order.client], self.timeout)
            self._sent.append((message, order.client))
        return [message for message, _ in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count what can be counted, take the server's step, write the books."""
        cohort, books = self._cohort, self.books
        assert cohort is not None
        outcome = (count_masked if self.secure else count_uploads)(self, cohort, self._row, self._sent, replies)
        books.counts[cohort.clients] += 1
        books.end_round(bool(outcome.counted))
        figures = note_round(self, cohort, outcome, self._row, len(self._sent))
        self.save()
        return self.arrays(), figures

    # -- parts ------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """Who works how, once everybody's n_i is known."""
        return Plan(self.experiment, self.books.samples, self.books.members)

    def save(self) -> None:
        """Write the books, and the model for others; when this returns they will survive a crash."""
        self.books.save(self.folder, self.key)
        export_model(self)

    def _accept(self, answer: Answer, key: str) -> str | None:
        """Whether an introduction is believed; returns why not, or None."""
        refusal = self.books.introduce(answer, key if self.bind_keys else None, self.max_samples)
        if refusal is None:
            self.said[answer.client] = answer.samples
            self.leaving |= {answer.client} if answer.leaving else set()
            self.lost |= set() if self.books.keeps_pace(answer) else {answer.client}
        return refusal

    def arrays(self) -> ArrayRecord:
        """The model to deploy as Flower's own strategies have it, a state_dict; flat where there is no module."""
        return as_arrays(self.experiment.problem, self.books.model)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The nodes are asked to test the model to deploy on their own test data."""
        self._sent = evaluation_messages(self)
        return [message for message, _ in self._sent]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Means over nodes, by their samples; the record's ``clients`` has more. None where nobody had results."""
        return results_of_nodes(self, collected(self, self._sent, replies))

    def summary(self) -> None:
        """Log what is run."""
        log(INFO, "\t%r, %s clients, books in %s", self.experiment.algorithm, self.roster.total, self.folder)
