"""Messages on their way: sent together, and their replies collected as they come, few of them in memory at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

POLL_SECONDS = 0.25
LOOKERS = 64
"""Threads that look for replies, each for its share of them."""
TURNS = 4
"""Replies that are fetched at the same time: each takes a few times the size of the model."""
PATIENCE_SECONDS = 5.0
"""After which a reply that is announced and does not come no longer takes up a turn."""
GRACE_SECONDS = 2.0
"""For the first look at every reply, where the time is up before it is done."""


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> Iterator[Message]:
    """Send, and give the replies that come in time one after the other, at most one for each message.

    As ``grid.send_and_receive``, but one reply cannot hold up another (Flower waits for hours for somebody who announces a
    reply and never sends its contents), and those that nobody has taken yet are left where they are.
    """
    if not messages:
        return iter(())
    sent = {number: message for number, message in zip(grid.push_messages(messages), messages, strict=True) if number}
    return _collected(grid, sent, time.monotonic() + timeout)


def _collected(grid: Grid, sent: dict[str, Message], deadline: float) -> Iterator[Message]:
    lookers = min(len(sent), LOOKERS)
    look = _Look(grid)
    for k in range(lookers):
        own = {number: sent[number] for number in list(sent)[k::lookers]}
        threading.Thread(target=look.for_replies, args=(own,), daemon=True).start()
    came = looked = 0
    try:
        while came < len(sent):
            left = deadline - time.monotonic() + (GRACE_SECONDS if looked < lookers else 0)
            item = look.found.get(timeout=max(left, 0.0))
            if isinstance(item, httpx.HTTPError):
                raise item
            if item is None:
                looked += 1
            else:
                came += 1
                yield item
    except Empty:
        pass  # the others come too late
    finally:
        look.over.set()


@dataclass
class _Look:
    """What the threads that look for the replies of one exchange share."""

    grid: Grid
    over: threading.Event = field(default_factory=threading.Event)
    """Nobody waits any more."""
    found: Queue[Message | httpx.HTTPError | None] = field(default_factory=lambda: Queue(maxsize=1))
    """None says that a thread has looked for all of its replies once."""
    _turns: dict[int, float] = field(default_factory=dict)
    """Thread -> since when it has been fetching; infinity once it has something to hand over."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def for_replies(self, waiting: dict[str, Message]) -> None:
        """Look until all are there or nobody waits for them any more."""
        try:
            first = True
            while waiting and not self.over.is_set():
                for number in list(waiting):
                    with self._turn():
                        if self.over.is_set():
                            return
                        if (reply := _pull(self.grid, number, waiting[number])) is not None:
                            del waiting[number]
                            self._hand_over(reply)
                        del reply
                if first:
                    self._hand_over(None)
                first = False
                self.over.wait(POLL_SECONDS if waiting else 0)
        except httpx.HTTPError as error:
            self._hand_over(error)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        own = threading.get_ident()
        with self._changed:
            while sum(time.monotonic() - begun < PATIENCE_SECONDS for begun in self._turns.values()) >= TURNS:
                self._changed.wait(PATIENCE_SECONDS / 10)  # told when one is over, but not when one has lasted too long
            self._turns[own] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._turns[own]
                self._changed.notify()

    def _hand_over(self, item: Message | httpx.HTTPError | None) -> None:
        own = threading.get_ident()
        if own in self._turns:
            self._turns[own] = float(
                "inf"
            )  # it is here: whoever fetches the next one has to wait, however long this takes
        while not self.over.is_set():
            with suppress(Full):
                self.found.put(item, timeout=PATIENCE_SECONDS / 10)  # then looks whether anybody still waits
                return


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
