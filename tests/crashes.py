"""Real processes to be killed, and what they leave behind to be compared."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedvra.cli import main
from fedvra.runs.files import Record, RunFolder
from fedvra.state.durable import snapshots

TIMES = ("seconds", "seconds_training")


class Child:
    """``fedvra ARGS`` in a process of its own with a process group of its own; forked, which spares it the imports."""

    def __init__(self, *args: str | Path | int, log: Path) -> None:
        self.log = log
        self._process = multiprocessing.get_context("fork").Process(target=_fedvra, args=([*map(str, args)], log))
        with warnings.catch_warnings():  # Python >= 3.12 warns of threads; the child never touches ours
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def alive(self) -> bool:
        return self._process.is_alive()

    def wait(self) -> int | None:
        """Its exit code; minus the number of the signal it died of. (A join with a timeout would wait for its workers too.)"""
        deadline = time.monotonic() + 120
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, to the server alone."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, f"the run was over before it was killed: {self.said()}"

    def signal(self, number: signal.Signals) -> None:
        """To the whole group, workers included, as a terminal or a cluster would."""
        os.killpg(self.pid, number)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that the child is to bring about."""
        deadline = time.monotonic() + 120
        while not condition():
            assert self.alive(), f"the run ended (exit code {self._process.exitcode}): {self.said()}"
            assert time.monotonic() < deadline
            time.sleep(0.0005)


def _fedvra(args: list[str], log: Path) -> None:
    os.setpgid(0, 0)
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    warnings.simplefilter("default")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main(args)


def lines(folder: RunFolder) -> int:
    """Rounds on record."""
    return folder.metrics_file.read_bytes().count(b"\n") if folder.metrics_file.exists() else 0


def untimed(metrics: list[Record]) -> list[Record]:
    return [{name: value for name, value in record.items() if name not in TIMES} for record in metrics]


def outcome(path: Path) -> tuple[list[Record], dict[str, bytes]]:
    """What a run came to: its records without their times, and the bytes of its last checkpoint (x0, lam, every lam_i, ...)."""
    folder = RunFolder(path)
    last = snapshots(folder.checkpoints)[-1]
    return untimed(folder.metrics()), {file.name: file.read_bytes() for file in last.iterdir()}
