"""Which node is which client, and how messages get there and back."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from logging import INFO, WARNING
from queue import Empty, Queue

import httpx
from flwr.app import Error, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from fedvra.core.errors import FedvraError
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

POLL_SECONDS = 0.25
LOOKERS = 64
"""Threads that look for replies, each for its share of them."""
GRACE_SECONDS = 2.0
"""For the first look at every reply, where the time is up before it is done."""
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""What Flower says of a message, or a reply, that was not there when its time was up."""


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send, and collect the replies that come in time, at most one for each message.

    As ``grid.send_and_receive``, but one reply cannot hold up another: Flower waits for hours for somebody who announces a
    reply and never sends its contents.
    """
    if not messages:
        return []
    sent = {number: message for number, message in zip(grid.push_messages(messages), messages, strict=True) if number}
    found: Queue[Message | httpx.HTTPError | None] = Queue()
    over, lookers = threading.Event(), min(len(sent), LOOKERS)
    for k in range(lookers):
        own = {number: sent[number] for number in list(sent)[k::lookers]}
        threading.Thread(target=_look, args=(grid, own, found, over), daemon=True).start()
    replies: list[Message] = []
    looked, deadline = 0, time.monotonic() + timeout
    try:
        while len(replies) < len(sent):
            left = deadline - time.monotonic() + (GRACE_SECONDS if looked < lookers else 0)
            item = found.get(timeout=max(left, 0.0))
            if isinstance(item, httpx.HTTPError):
                raise item
            if item is None:
                looked += 1
            else:
                replies.append(item)
    except Empty:
        pass  # the others come too late
    finally:
        over.set()
    return replies


def _look(
    grid: Grid, waiting: dict[str, Message], found: Queue[Message | httpx.HTTPError | None], over: threading.Event
) -> None:
    """Look for replies until all are there or nobody waits for them any more; None says that all were looked for once."""
    try:
        first = True
        while waiting and not over.is_set():
            for number in list(waiting):
                if (reply := _pull(grid, number, waiting[number])) is not None:
                    del waiting[number]
                    found.put(reply)
            if first:
                found.put(None)
            first = False
            over.wait(POLL_SECONDS if waiting else 0)
    except httpx.HTTPError as error:
        found.put(error)


def _pull(grid: Grid, number: str, message: Message) -> Message | None:
    """The reply to one message, if it is there. One at a time: a reply that breaks Flower's parser takes no other along."""
    try:
        found = list(grid.pull_messages([number]))
        if not found:
            return None
        if found[0].metadata.reply_to_message_id == number:
            return found[0]
        what = "a reply to another message"
    except httpx.HTTPError:
        raise  # the SuperLink is out of reach
    except Exception as error:  # whatever Flower makes of bytes that are no message
        what = f"what Flower cannot read ({type(error).__name__})"
    return Message(Error(ErrorCode.UNKNOWN, f"it sent {what}"), reply_to=message)


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


def match(messages: Iterable[Message], replies: Iterable[Message]) -> list[Message | None]:
    """Each message's reply. By the message's number: error replies do not carry the sender's."""
    by_number = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return [by_number.get(message.metadata.message_id) for message in messages]


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
        messages = [make_message(self.hello(), node, timeout) for node in new]
        for node, reply in zip(new, match(messages, exchange(grid, messages, timeout)), strict=True):
            answer = read_reply(reply)
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
