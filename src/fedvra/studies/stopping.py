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
    asked: bool = False


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """While this lasts, SIGINT and SIGTERM are noted in ``asked``; from the second on they raise ``KeyboardInterrupt``.

    A signal that is ignored stays ignored (as in a job that a script put into the background), and outside the main thread,
    where Python allows no handlers, nothing is changed.
    """
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
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
