"""A federation in memory: Flower's Grid and nodes without its processes, and with every fault at hand."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

import fedvra as fv
from fedvra.flower.node import FOLDER, PARTITION, client_app
from fedvra.flower.protocol import Order, unpack_order

Fault = Callable[[Order], str]
"""What happens to a message: "" nothing, "unsent", "silent" (handled, the reply is lost), "raises" (after the work), "late"
(handled before the next push, the reply is lost), "twice" (handled twice, the first reply counts), "garbled" (handled, the
reply breaks Flower's parser), "stuck" (handled, the reply is announced and never comes)."""


@dataclass
class Node:
    client: int
    folder: Path
    app: ClientApp
    config: dict[str, Any] = field(default_factory=dict)
    key: bytes = b""
    """Its public key; one of its own where none is given."""

    def handle(self, message: Message) -> Message:
        config: dict[str, Any] = {PARTITION: self.client, FOLDER: str(self.folder), **self.config}
        return self.app(message, Context(0, 100 + self.client, config, RecordDict(), {}))

    def wipe(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class FakeGrid:
    """Only what ``fedvra.flower`` uses of a Grid."""

    nodes: dict[int, Node]
    fault: Fault = lambda order: ""
    tamper: Callable[[Order, Message], Message] = lambda order, reply: reply
    """What becomes of a reply on its way."""
    offline: set[int] = field(default_factory=set)
    sent: list[Order] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    """Set by a test that is done: replies that are stuck need not be waited for any longer."""
    waited: bool = False
    """Whether one of them was."""
    _late: list[tuple[Node, Message]] = field(default_factory=list)
    _replies: dict[str, Message | Exception] = field(default_factory=dict)
    _stuck: set[str] = field(default_factory=set)
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_nodes(self) -> list[NodeInfo]:
        here = [number for number in self.nodes if number not in self.offline]
        return [NodeInfo(node_id=number, public_key=self.nodes[number].key or b"key %d" % number) for number in here]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        late, self._late = self._late, []
        for node, message in late:
            node.handle(message)
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        number = message.metadata.__dict__["_message_id"] = f"m{next(self._numbers)}"
        order = unpack_order(message.content)
        self.sent.append(order)
        node, fault = self.nodes[message.metadata.dst_node_id], self.fault(order)
        if fault == "unsent":
            return number
        if fault == "late":
            self._late.append((node, message))
            return number
        try:
            reply = node.handle(message)
        except fv.FedvraError as error:
            reply = Message(Error(2, str(error)), reply_to=message)
        if fault == "twice":
            node.handle(message)
        if fault == "raises":
            reply = Message(Error(2, "raised after its work"), reply_to=message)
        if fault != "silent":
            self._replies[number] = KeyError("garbled") if fault == "garbled" else self.tamper(order, reply)
        if fault == "stuck":
            self._stuck.add(number)
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As Flower does: a reply is gone once it was pulled, and one that cannot be parsed raises."""
        if self._stuck.intersection(message_ids):
            self.release.wait(300)
            self.waited = True
        found = [self._replies.pop(number) for number in message_ids if number in self._replies]
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        return [reply for reply in found if isinstance(reply, Message)]


def quadratic(clients: int = 3, size: int = 4, dtype: torch.dtype = torch.float64) -> fv.Quadratic:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(clients, size, size))
    A = root @ root.transpose(0, 2, 1) / size + np.eye(size)
    return fv.Quadratic(torch.as_tensor(A, dtype=dtype), torch.as_tensor(rng.normal(size=(clients, size)), dtype=dtype))


def make_nodes(problem: fv.Quadratic, folder: Path, app: ClientApp | None = None) -> dict[int, Node]:
    clients = len(problem.b)
    return {100 + i: Node(i, folder / f"node{i}", app or client_app(problem=problem)) for i in range(clients)}
