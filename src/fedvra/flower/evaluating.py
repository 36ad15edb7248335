"""Federated evaluation: the global model on every node's own test data, and what the server makes of the answers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Message, MetricRecord
from torch import Tensor

from fedvra.callbacks.client_results import described
from fedvra.core.errors import UsageError
from fedvra.core.streams import Purpose, stream
from fedvra.core.threads import one_thread
from fedvra.data.dataset import FederatedData
from fedvra.engines.evaluation import ClientScores, named
from fedvra.flower.errands import make_order
from fedvra.flower.protocol import Answer, BadMessageError, Errand, Order, Status, read_array, to_array
from fedvra.flower.roster import answers, make_message
from fedvra.local.measuring import TEST_PART
from fedvra.local.metrics import Metrics, compute
from fedvra.local.protocol import Looked, Samples, SolverSettings, with_outputs
from fedvra.problems.base import Problem
from fedvra.samplers.base import random_subset

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy


def evaluation_orders(strategy: Strategy) -> list[Order]:
    """One for every client that is connected, or for some of them, drawn anew each time."""
    books, connected = strategy.books, sorted(strategy.roster.nodes)
    some = strategy.evaluate_clients
    if some is not None and some < len(connected):
        rng = stream(strategy.experiment.seed, Purpose.PROBE, round=books.round)
        connected = [connected[k] for k in sorted(random_subset(rng, len(connected), some))]
    model = books.model
    vectors = {name: to_array(v) for name, v in (("x0", model.x), ("aux", model.aux)) if v is not None}
    names = ",".join(strategy.metric_names)
    return [
        replace(make_order(strategy, Errand.EVALUATE, i), metrics=names, arrays={}, shared=vectors) for i in connected
    ]


def evaluation_messages(strategy: Strategy) -> list[tuple[Message, int]]:
    orders = evaluation_orders(strategy)
    return [(make_message(o, strategy.roster.nodes[o.client], strategy.timeout), o.client) for o in orders]


def collected(strategy: Strategy, sent: list[tuple[Message, int]], replies: Iterable[Message]) -> dict[str, Any]:
    """What the nodes' results come to, as ``clients`` of a record has it; empty where nobody had any."""
    names = ["accuracy", "loss", *strategy.metric_names]
    clients, samples, rows = [], [], []
    came = dict(answers(sent, replies))
    for _, client in sent:
        answer = came[client]
        if isinstance(answer, str) or answer.status != Status.DONE or answer.client != client:
            continue
        if not 1 <= answer.samples <= strategy.max_samples or (found := _figures(answer, len(names))) is None:
            continue
        clients.append(client)
        samples.append(answer.samples)
        rows.append(found)
    if not rows:
        return {}
    table = np.array(rows)
    columns = {name: table[:, k] for k, name in enumerate(names) if not np.isnan(table[:, k]).all()}
    scores = ClientScores(np.array(clients), np.array(samples), columns)
    return described(scores, strategy.books.samples[clients])


def labelled(found: dict[str, Any]) -> MetricRecord:
    """For Flower's result: means over nodes by their samples, and called so, for an F1 of all samples is another number."""
    means = {f"{name}_mean_over_nodes": each["by_samples"] for name, each in found.items() if isinstance(each, dict)}
    return MetricRecord({"nodes": int(found.get("count", 0)), "samples": int(found.get("samples", 0)), **means})


def own_results(
    problem: Problem[Any], data: Any, settings: SolverSettings, client: int, order: Order, metrics: Metrics
) -> tuple[int, Tensor]:
    """On a node: how many test samples it has, and [accuracy, loss, metrics as the order names them]; NaN: not known here."""
    wanted = [name for name in order.metrics.split(",") if name]
    rows, test = _own_test(data, client)
    if not len(rows):
        return 0, torch.empty(0, dtype=torch.float64)
    with one_thread():
        solver = problem.solver(data, settings)
    looked: list[Looked] = []
    with closing(solver):
        looking = with_outputs(solver)
        x0, aux = order.arrays["x0"], order.arrays.get("aux")
        for k in range(0, len(rows), TEST_PART):
            looked.append(looking.look(x0, aux, Samples(rows[k : k + TEST_PART], test), bool(metrics)))
    found = {**named([each.sums for each in looked], ""), **compute(metrics, looked)}
    values = [found.get(name) for name in ("accuracy", "loss", *wanted)]
    return len(rows), torch.tensor([float("nan") if v is None else float(v) for v in values], dtype=torch.float64)


def _own_test(data: Any, client: int) -> tuple[Any, bool]:
    """The rows a node is tested on, and whether they are of its test data."""
    if not isinstance(data, FederatedData):
        raise UsageError("this node's problem has no samples to be tested on.")
    if data.test_offsets is not None:
        return data.own_test(client), False
    return np.arange(data.dataset.test_samples), True


def _figures(answer: Answer, count: int) -> list[float] | None:
    """The figures of an answer, if they are what was asked for: numbers, or NaN."""
    array = answer.arrays.get("figures")
    try:
        values = None if array is None else read_array(array).double()
    except BadMessageError:
        return None
    if values is None or values.numel() != count or bool(torch.isinf(values).any()):
        return None
    return [float(value) for value in values]
