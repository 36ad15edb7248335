"""Callbacks of `simulate` that keep something of every round: x0, or the state to resume from."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from fedvra.callbacks.base import Callback, Run
from fedvra.core.errors import require
from fedvra.core.files import replace_durably
from fedvra.engines import checkpoint
from fedvra.engines.federation import Federation
from fedvra.runs.files import Record


class Snapshots(Callback):
    """The state every few rounds, in a temporary folder: what a cluster's federation resumes from when a worker has died."""

    afterwards = True

    def __init__(self, every: int) -> None:
        self.every, self.folder = every, TemporaryDirectory(prefix="fedvra-")

    def on_round(self, run: Run, record: dict[str, Any]) -> None:
        if record["round"] % self.every == 0:
            place = Path(self.folder.name) / "checkpoint"
            checkpoint.save(run.federation, place)
            run.federation.checkpoints = place

    def on_end(self, run: Run) -> None:
        self.folder.cleanup()


class Kept(Callback):
    """x0 after each round."""

    afterwards = True

    def __init__(self, file: Path | None = None) -> None:
        self.x0: list[Tensor] = []
        self.file = file
        """Where they are kept besides; a run that is resumed finds them there."""

    def read(self, federation: Federation) -> None:
        """What was kept before the run was interrupted."""
        assert self.file is not None
        done, x0 = federation.state.round, federation.state.x0
        width = x0.numel() * x0.element_size()
        content = self.file.read_bytes()[: done * width] if self.file.exists() else b""
        require(
            len(content) == done * width, f"{self.file} is not whole: keep='x0' must be there from the first round."
        )
        self.x0 = list(torch.frombuffer(bytearray(content), dtype=x0.dtype).reshape(done, -1)) if done else []
        replace_durably(self.file, content)

    def on_round(self, run: Run, record: Record) -> None:
        self.x0.append(run.federation.state.x0.cpu().clone())
        if self.file is not None:
            with self.file.open("ab") as file:
                file.write(self.x0[-1].view(torch.uint8).numpy().tobytes())
