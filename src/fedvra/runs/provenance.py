"""How a run came about: the command, the versions, the commit, the date and the machine, noted once when its folder is made."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedvra import __version__
from fedvra.core.files import replace_durably

PATIENCE = 5.0
"""Seconds that git may take to name the commit: a run does not wait for a slow file system."""


@dataclass(frozen=True)
class Provenance:
    """The content of ``provenance.json``. Nothing in it decides a run's numbers."""

    command: str
    version: str
    python: str
    torch: str
    commit: str | None
    """Of the folder it was started in, ``-dirty`` with changes that are not committed; None outside of a repository."""
    started: str
    machine: str

    @classmethod
    def here(cls) -> Provenance:
        """Of a run that starts now, in this process."""
        import torch

        name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        return cls(
            command=shlex.join(["fedvra" if name == "__main__.py" else name, *sys.argv[1:]]),
            version=__version__,
            python=platform.python_version(),
            torch=str(torch.__version__),
            commit=commit_of(os.getcwd()),
            started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        )

    @classmethod
    def read(cls, file: Path) -> Provenance | None:
        """None where there is no such file: a run from before this was noted, or one that came from elsewhere."""
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None

    def write(self, file: Path) -> None:
        replace_durably(file, (json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode())


@functools.cache
def commit_of(folder: str) -> str | None:
    """The commit that is checked out there, asked for once per process."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):  # no git, or a slow one: the run matters more
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
