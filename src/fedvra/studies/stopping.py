"""Ctrl-C without losing a round: the first signal asks a run to stop when its round is over, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTICE = b"\nStopping when this round is over; once more stops at once.\n"


@dataclass
class Stop:
    """What signals have asked for so far."""

    asked: bool = False
    at_once: bool = False
    """By a second signal."""
    ready: bool = True
    """Whether a second signal may raise now; before, it is kept for :meth:`begin`."""

    def begin(self) -> None:
        """From here on everything is in place for being stopped at once."""
        self.ready = True
        if self.at_once:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signal(ready: bool = True) -> Iterator[Stop]:
    """While this lasts, SIGINT and SIGTERM are noted in ``asked``; from the second on they raise ``KeyboardInterrupt``.

    Unless ``ready``, that waits for ``Stop.begin``.

    A signal that is ignored stays ignored (as in a job that a script put into the background), and outside the main thread,
    where Python allows no handlers, nothing is changed.
    """
    stop = Stop(ready=ready)

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked and stop.ready:
            raise KeyboardInterrupt
        if stop.asked:
            stop.at_once = True
            return
        stop.asked = True
        with suppress(OSError):
            os.write(2, NOTICE)  # not print, which may be what the signal interrupted

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS if main}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number in ours:
            signal.signal(number, before[number])
