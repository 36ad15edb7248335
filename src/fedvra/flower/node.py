"""The client side: the user says what the model, the loss and the data are; duals and tickets are none of their business.

    app = ClientApp()

    @app.train()
    @fedvra.flower.client(problem=fv.Supervised(make_model), data=load_my_data)
    def train(work: LocalWork) -> Tensor:
        return work.solve()

``client_app(problem=..., data=...)`` is the same in one line. Longer than other files: a message is answered in one place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fedvra.compress import parse_compressor
from fedvra.core.block import Block, BlockTerms, Broadcast, Kept, Orders, Private
from fedvra.core.block import Rows as KeptRows
from fedvra.core.errors import UsageError, require
from fedvra.core.optimisers import PLAIN, LocalOptimiser, Torch, parse_local
from fedvra.core.record_dp import Guard, RecordDP, as_privacy, parse_privacy
from fedvra.core.step import CompressedMoves, CountedMoves, Moves, client_round
from fedvra.core.threads import one_thread
from fedvra.data.dataset import Dataset
from fedvra.flower.client_ledger import Ledger, LedgerRows, LostStateError, Rows, StaleMessageError
from fedvra.flower.evaluating import own_results
from fedvra.flower.mask_keys import RosterError
from fedvra.flower.masked_node import WHOLE, Party
from fedvra.flower.orphans import end_with_supernode
from fedvra.flower.own_part import PARTITION as PARTITION
from fedvra.flower.own_part import client_number, own_part
from fedvra.flower.privacy_book import BudgetSpentError, PrivacyBook
from fedvra.flower.private import read_key
from fedvra.flower.protocol import Answer, Errand, Order, Status, pack, to_array, unpack_order
from fedvra.flower.wire import received
from fedvra.local.metrics import Metrics, check_metrics
from fedvra.local.own_loop import LocalWork, own_steps
from fedvra.local.protocol import Solver, SolverSettings, start_of_y
from fedvra.problems.base import Problem, frozen_of, keeps_statistics_local, require_records, statistics_of, y_width_of
from fedvra.state.frozen import keep_frozen, require_frozen

FOLDER, KEY_FILE, LEAVE = "fedvra-folder", "fedvra-key-file", "fedvra-leave"
"""Keys of a SuperNode's --node-config: its client's ledger and the secret that seals it, and whether it leaves for good."""

Steps = Callable[[LocalWork], Tensor]
Handler = Callable[[Message, Context], Message]


def client(
    *,
    problem: Problem | Callable[[Context], Problem],
    data: Any = None,
    solver: SolverSettings | None = None,
    local: Torch | None = None,
    metrics: Metrics | None = None,
    privacy: RecordDP | None = None,
) -> Callable[[Steps], Handler]:
    """Make a ClientApp's train function out of one that does the local steps.

    Args:
        problem: as for :func:`fedvra.simulate`, or a function of Flower's ``Context`` that makes it.
        data: this node's own: a :class:`fedvra.Dataset`, what else the problem works on, or a function of the ``Context``
            that loads it. A ``FederatedData`` is taken to hold all clients' parts, of which this node uses its own.
        solver: how steps are computed; the batch size is the server's.
        local: the server names the optimiser; one that a function makes, ``fv.Torch(...)``, each client must have itself.
        metrics: figures of its own test data for the server's ``evaluate_every``, as for :func:`fedvra.simulate`.
        privacy: ``fv.RecordDP(...)``, this node's own rule, whatever the server's; None takes the server's where it has one.
    """

    def decorate(steps: Steps) -> Handler:
        @functools.wraps(steps)
        def handle(message: Message, context: Context) -> Message:
            end_with_supernode()
            order = unpack_order(message.content)
            node = _Node(order, context, problem, data, solver or SolverSettings(), steps, local, metrics, privacy)
            return Message(pack(node.answer()), reply_to=message)

        return handle

    return decorate


def client_app(
    *,
    problem: Problem | Callable[[Context], Problem],
    data: Any = None,
    solver: SolverSettings | None = None,
    local: Torch | None = None,
    metrics: Metrics | None = None,
    privacy: RecordDP | None = None,
) -> ClientApp:
    """A whole ClientApp that takes the library's own local steps."""
    app = ClientApp()
    made = client(problem=problem, data=data, solver=solver, local=local, metrics=metrics, privacy=privacy)
    app.train()(made(LocalWork.solve))
    return app


class _Node:
    """One message being answered: Flower starts a process for each, so nothing is kept but what the ledger holds."""

    def __init__(
        self,
        order: Order,
        context: Context,
        problem: Any,
        data: Any,
        settings: SolverSettings,
        steps: Steps,
        local: Torch | None = None,
        metrics: Metrics | None = None,
        privacy: RecordDP | None = None,
    ) -> None:
        self.order, self.context, self.steps, self.local = order, context, steps, local
        self.metrics = check_metrics({} if metrics is None else metrics)
        self.client = client_number(context, order.total)
        self.leaving = int(bool(context.node_config.get(LEAVE)))
        self._problem, self._data = problem, data
        self.settings = settings.of_run(order.batch_size or None, bool(order.drop_last), order.seed)
        root = Path(str(context.node_config.get(FOLDER) or Path.home() / ".fedvra" / "ledger")).expanduser()
        key = read_key(str(context.node_config.get(KEY_FILE) or ""))
        self.ledger = Ledger.of(root, order.experiment, self.client, key)
        self.rule = as_privacy(privacy) or (parse_privacy(order.privacy) if order.privacy else None)
        self.book = PrivacyBook(root, self.client, key)

    @functools.cached_property
    def problem(self) -> Problem:
        found = self._problem if isinstance(self._problem, Problem) else self._problem(self.context)
        require(isinstance(found, Problem), f"problem must be or make a fedvra Problem, got {type(found).__name__}.")
        assert isinstance(found, Problem)
        return found

    @functools.cached_property
    def data(self) -> Any:
        found = self._data(self.context) if callable(self._data) else self._data
        found = own_part(found, self.client, self.order.total) if isinstance(found, Dataset) else found
        with one_thread():  # small trials, for which several would wait on each other
            self.problem.check(found, self.settings)
        return found

    @functools.cached_property
    def arrays(self) -> Mapping[str, Tensor]:
        """What the order brought, as numbers."""
        return (
            received(self.order, self.problem.initial(self.order.seed))
            if self.order.compress_down
            else self.order.arrays
        )

    def answer(self) -> Answer:
        order = self.order
        if order.errand != Errand.HELLO and order.client != self.client:
            return self._say(Status.REFUSED, f"the message is for client {order.client}, this is client {self.client}.")
        if self.rule is not None and order.errand in (Errand.LOSS, Errand.EVALUATE):
            return self._say(Status.REFUSED, "figures of its data without noise are not reported (privacy).")
        try:
            self.party = Party.of(self.context.node_config, order, self.client)
            match order.errand:
                case Errand.HELLO:
                    return self._hello()
                case Errand.LOSS:
                    return self._loss()
                case Errand.EVALUATE:
                    return self._evaluate()
                case Errand.REPORT | Errand.TRAIN:
                    with self.ledger.alone():
                        if self.party is not None:
                            self.party.check_books(self.ledger.page)
                        self._settle()
                        if self.party is not None:
                            self.party.spend()
                        return self._report() if order.errand == Errand.REPORT else self._train()
        except BudgetSpentError as error:
            return self._say(Status.SPENT, str(error))
        except LostStateError as error:
            return self._say(Status.LOST, str(error))
        except StaleMessageError as error:
            return self._say(Status.STALE, str(error))
        except RosterError as error:
            return self._say(Status.REFUSED, str(error))
        return self._say(Status.REFUSED, f"there is no errand {order.errand!r}: is the server's fedvra newer?")

    def _say(self, status: Status, reason: str = "", **more: Any) -> Answer:
        return Answer(status=status, client=self.client, reason=reason[:1000], leaving=self.leaving, **more)

    def _hello(self) -> Answer:
        page = self.ledger.page
        return self._say(
            Status.DONE,
            samples=self._samples(),
            committed=page.committed.ticket,
            pending=page.pending.ticket if page.pending else "",
        )

    def _samples(self) -> int:
        """n_i as others are told."""
        held = int(self.problem.samples(self.data)[self.client])
        return held if self.rule is None else self.book.told(self.rule, held)

    def _guard(self) -> tuple[Guard | None, float]:
        """How gradients are made private, paid for in advance, and what epsilon has come to with that."""
        order = self.order
        if self.rule is None:
            return None, 0.0
        require(order.local != "loop", "privacy: a training loop of one's own sees records as they are.")
        require_records(self.problem, self.data, self.settings)
        return self.book.guard(self.rule, self._samples(), order.batch_size or None, order.steps)

    def _loss(self) -> Answer:
        with closing(self.problem.solver(self.data, self.settings)) as solver:
            found = solver.losses(self.arrays["x0"], np.array([self.client]))
        return self._say(Status.DONE, loss=float(found[0]))

    def _evaluate(self) -> Answer:
        samples, figures = own_results(self.problem, self.data, self.settings, self.client, self.order, self.metrics)
        return self._say(Status.DONE, samples=samples, arrays={"figures": to_array(figures)})

    def _settle(self) -> None:
        order, lam_i = self.order, self.order.arrays.get("restore")
        restore = None if lam_i is None else {"lam": lam_i}
        self.ledger.settle(order.counted, (order.incarnation, order.number), restore)

    def _report(self) -> Answer:
        rows = self.ledger.rows()
        if self.party is not None:
            arrays = self.party.report(rows, self.problem.initial(self.order.seed).numel())
            return self._say(Status.DONE, arrays=arrays)
        return self._say(Status.DONE, arrays={"lam": to_array(rows["lam"])} if "lam" in rows else {})

    def _train(self) -> Answer:
        """Steps 9-15; the new state is on the disk before the upload leaves."""
        if self.leaving:
            return self._say(Status.REFUSED, f"it wants to leave ({LEAVE} in its node-config).")
        if not self.order.is_work:
            return self._say(Status.REFUSED, "the order has steps, stepsizes or batches that nobody can do.")
        order, rows, new = self.order, self.ledger.rows(), Rows()
        x0, lam, aux = self.arrays["x0"], self.arrays.get("lam"), self.arrays.get("aux")
        self._check_model(aux)
        block = Block(order.round, order.seed, np.array([self.client]), np.array([order.steps]), np.array([order.eta]))
        gamma, alpha = np.array([order.gamma]), np.array([order.alpha])
        rate = np.array([order.rate]) if order.rate and order.local == "loop" else None
        orders = Orders(block, gamma, alpha, order.sigma, self.problem.decay, local=self._optimiser(), rate=rate)
        guard, spent = self._guard()
        orders = replace(orders, compress=parse_compressor(order.compress) if order.compress else None, guard=guard)
        if self.party is not None:
            orders = replace(orders, counting=self.party.counting(rows))
        kept = Kept(
            duals=self._duals(rows, new, x0.dtype),
            aux=LedgerRows("aux", rows, new) if keeps_statistics_local(self.problem) else None,
            y=LedgerRows("y", rows, new) if y_width_of(self.problem, self.data) else None,
            residuals=LedgerRows("residual", rows, new) if order.residual else None,
        )
        with one_thread():
            solver = self.problem.solver(self.data, self.settings)
        with closing(solver):
            private = kept.start(aux, start_of_y(solver), block.clients)
            sent = Broadcast(x0, torch.zeros_like(x0) if lam is None else lam, aux)
            moves = client_round(functools.partial(self._steps, solver), sent, orders, kept, private)
        if self.party is not None:
            assert isinstance(moves, CountedMoves)
            loss = float(moves.losses[0]) if guard is None else 0.0
            said: dict[str, Any] = {} if guard is None else {"silent": 1, "epsilon": spent}
            arrays = self.party.upload(moves, loss, None if private.aux is None else private.aux[0])
            return self._say(Status.DONE, ticket=self.ledger.stage(new), samples=self._samples(), arrays=arrays, **said)
        arrays = {"move": to_array(moves.message(0) if isinstance(moves, CompressedMoves) else moves.sent(0))}
        if private.aux is not None:
            arrays["aux"] = to_array(private.aux[0])
        told: dict[str, Any] = {"loss": float(moves.losses[0])} if guard is None else {"silent": 1, "epsilon": spent}
        ticket, samples = self.ledger.stage(new), self._samples()
        answer = self._say(Status.DONE, ticket=ticket, samples=samples, arrays=arrays, **told)
        if moves.done is None:
            return answer
        return replace(answer, steps=int(moves.done.steps[0]), carried=float(np.nan_to_num(moves.done.carried[0])))

    def _duals(self, rows: Rows, new: Rows, dtype: torch.dtype) -> KeptRows | None:
        """Where this client's dual is, if it has one."""
        if not (self.order.alpha or self.order.sigma or rows.keys() & {"lam", WHOLE}):
            return None
        return LedgerRows("lam", rows, new) if self.party is None else self.party.duals(rows, new, dtype)

    def _optimiser(self) -> LocalOptimiser:
        """The one that the order names."""
        if self.order.local == "loop":
            return PLAIN
        if self.order.local != "torch":
            return parse_local(self.order.local)
        if self.local is None:
            raise UsageError(
                "the server asks for an optimiser that only a function makes: give this client the same, "
                "client_app(..., local=fv.Torch(...))."
            )
        self.local.check(self.problem.decay)
        return self.local

    def _steps(self, solver: Solver, terms: BlockTerms, private: Private, block: Block) -> Moves:
        """The user's own way through steps 9-13."""
        loop = self.order.local == "loop"
        return own_steps(self.steps, solver, self.problem, self.data, terms, private, block, self.context, counted=loop)

    def _check_model(self, aux: Tensor | None) -> None:
        """Its frozen part and its statistics are what the server takes them for."""
        here, there = (0 if t is None else t.numel() for t in (self._statistics(), aux))
        require(
            here == there,
            f"training changes {here} numbers of this model besides its parameters, and the server, which goes by the kinds of "
            f"layers, expects {there}: use layers that torch knows (BatchNorm), or none that keep statistics.",
        )
        frozen = frozen_of(self.problem, self.order.seed)
        keep_frozen(self.ledger.folder.parent, frozen)
        require_frozen(self.ledger.folder.parent, self.order.frozen, frozen)

    def _statistics(self) -> Tensor | None:
        data = self.data  # looked at first: what training changes is found with data
        return None if data is None else statistics_of(self.problem, self.order.seed)
