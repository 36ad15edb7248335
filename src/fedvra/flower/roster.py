"""Which node is which client, and what each answers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from fedvra.core.errors import FedvraError
from fedvra.flower.exchange import POLL_SECONDS, exchange
from fedvra.flower.protocol import (
    MAX_SHOWN,
    MAX_TEXT,
    Answer,
    BadMessageError,
    Order,
    Status,
    pack,
    printable,
    unpack_answer,
)

EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""What Flower says of a message, or a reply, that was not there when its time was up."""


def make_message(order: Order, node: int, timeout: float) -> Message:
    """A message for one node. It expires with the round: nobody is to work for a round that is over."""
    return Message(pack(order), node, MessageType.TRAIN, ttl=timeout, group_id=str(order.round + 1))


def read_reply(reply: Message | None) -> Answer | str:
    """The answer in a reply, or why there is none."""
    if reply is None:
        return "did not answer in time"
    if reply.has_error() and reply.error.code in EXPIRED:
        return "did not answer in time"
    if reply.has_error():
        reason = " ".join(str(reply.error.reason)[-MAX_TEXT:].split())
        return f"failed: {printable(reason[-MAX_SHOWN:]) or 'no reason given'}"
    try:
        return unpack_answer(reply.content)
    except BadMessageError as error:
        return f"sent a message that cannot be read: {error}"


def fingerprint(public_key: bytes) -> str:
    """A node's public key as the books have it: the SHA-256 of it; "" where there is none."""
    return hashlib.sha256(public_key).hexdigest() if public_key else ""


def answers(sent: Sequence[tuple[Message, int]], replies: Iterable[Message]) -> Iterator[tuple[int, Answer | str]]:
    """Of each whom a message was sent to, the answer as it comes, or why there is none.

    By the message's number: error replies do not carry the sender's.
    """
    waiting = {message.metadata.message_id: whom for message, whom in sent}
    for reply in replies:
        whom = waiting.pop(reply.metadata.reply_to_message_id, None)
        if whom is not None:
            yield whom, read_reply(reply)
    for whom in waiting.values():
        yield whom, read_reply(None)


@dataclass
class Roster:
    """The nodes that have said who they are."""

    total: int
    """How many client numbers there are."""
    hello: Callable[[], Order]
    accept: Callable[[Answer, str], str | None]
    """Looks at an introduction and the key of the node it came from; returns why it is refused, or None."""
    nodes: dict[int, int] = field(default_factory=dict)
    """Client -> node, of those connected now."""
    _known: dict[int, int | None] = field(default_factory=dict)
    """Node -> client; None for a node that was refused."""
    _troubles: dict[int, str] = field(default_factory=dict)
    """What came of the introduction of nodes that are not known."""

    def refresh(self, grid: Grid, timeout: float) -> None:
        """See who is connected, and ask the new ones who they are."""
        here = {node.node_id: fingerprint(node.public_key) for node in grid.get_nodes()}
        self._known = {node: client for node, client in self._known.items() if node in here}
        new = sorted(here.keys() - self._known.keys())
        sent = [(make_message(self.hello(), node, timeout), node) for node in new]
        came = dict(answers(sent, exchange(grid, [message for message, _ in sent], timeout)))
        for node in new:
            answer = came[node]
            self._troubles.pop(node, None)
            if isinstance(answer, str):
                self._trouble(node, answer)  # asked again next time
                continue
            done = answer.status == Status.DONE
            refusal = self.accept(answer, here[node]) if done else printable(answer.reason) or "no reason given"
            self._known[node] = None if refusal else answer.client
            if refusal:
                self._trouble(node, f"(client {answer.client}) is refused: {refusal}")
            else:
                log(INFO, "node %s is client %s with %s samples", node, answer.client, answer.samples)
        # Where keys are not bound to clients, and two nodes say they are the same one, the later is (a restarted node).
        self.nodes = {client: node for node, client in self._known.items() if client is not None}

    def gather(self, grid: Grid, wanted: Set[int], wait: float, timeout: float) -> None:
        """Wait until all of ``wanted`` are known; where nobody is named, until somebody is."""
        deadline = time.monotonic() + wait
        while True:
            self.refresh(grid, timeout)
            missing = sorted(wanted - self.nodes.keys())
            if not missing and self.nodes:
                return
            if time.monotonic() > deadline:
                raise FedvraError(
                    f"after {wait:g} s {len(self.nodes)} of {len(self.nodes) + len(missing) or self.total} clients are "
                    f"connected (missing: {', '.join(map(str, missing[:10])) or 'all'}): start their SuperNodes, or wait "
                    "longer." + "".join(f" Node {node} {trouble}" for node, trouble in self._troubles.items())
                )
            time.sleep(POLL_SECONDS * 4)

    def forget(self, client: int) -> None:
        """Nothing is asked any more of the node of a client that has left."""
        self._known = {node: None if known == client else known for node, known in self._known.items()}
        self.nodes.pop(client, None)

    def _trouble(self, node: int, what: str) -> None:
        log(WARNING, "node %s %s", node, what)
        self._troubles[node] = what
