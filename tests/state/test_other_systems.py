"""Runs where there is neither fcntl nor resource, no memfd, no /proc, no fork: one process, to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from crashes import outcome

NAMES = {
    "os": (
        "memfd_create", "posix_fallocate", "preadv", "pread", "pwrite", "sched_getaffinity", "sched_setscheduler", "sysconf",
        "fork", "setsid", "killpg", "getppid", "O_CLOEXEC",
    ),
    "mmap": ("MADV_HUGEPAGE", "MAP_POPULATE", "MAP_SHARED", "MAP_PRIVATE"),
}  # fmt: skip
ELSEWHERE = f"""
import sys, os, mmap, sysconfig, warnings
import torch, numpy, multiprocessing.context, click, rich.live  # which make up their minds about the system when imported
sysconfig.get_config_vars()

for name in ("fcntl", "resource"):
    sys.modules[name] = None
for name in {NAMES["os"]}:
    delattr(os, name)
for name in {NAMES["mmap"]}:
    delattr(mmap, name)
sys.platform = "elsewhere"

def no_proc(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "there is no such thing here", arguments[0])

sys.addaudithook(no_proc)
warnings.filterwarnings("ignore", "only soft file lock is available")
"""


def elsewhere(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script on another system, as far as Python can tell."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    flags = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *flags, "-c", ELSEWHERE + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_a_run_in_a_folder_is_interrupted_and_resumed_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    done = elsewhere(
        """
from pathlib import Path
from fedvra.core.errors import RunInterrupt, UsageError
from fedvra.state.folders import locked
from fedvra.studies import execution
from small_run import small

execution.picture = lambda data, path: None
out = Path(sys.argv[1])

def stop(record):
    if record["round"] == 4:
        raise KeyboardInterrupt

try:
    execution.execute(small(workers="auto", state_memory=0), out, [stop])
except KeyboardInterrupt:
    pass
with locked(out):
    try:
        execution.resume(out)
    except UsageError as error:
        assert "is at work in" in str(error), error
    else:
        raise AssertionError("two at work in one folder")
summary = execution.resume(out)
assert summary.status == "finished" and summary.peak_rss_mb is None, summary
""",
        tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    assert "a pool of workers needs Linux" in done.stderr
    assert outcome(tmp_path / "run")[1] == outcome(whole)[1]


def test_two_workers_become_one_with_a_word_and_one_says_nothing() -> None:
    done = elsewhere(
        """
import fedvra as fv
eye = torch.eye(2, dtype=torch.float64).repeat(4, 1, 1)
problem = fv.Quadratic(eye, torch.ones(4, 2, dtype=torch.float64))
found = [
    fv.simulate(fv.FedVRA(), problem=problem, sampler=fv.Uniform(2), work=fv.Steps(2), rounds=3, workers=workers).x0.tolist()
    for workers in (1, 2)
]
assert found[0] == found[1], found
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a pool of workers needs Linux") == 1


def test_every_module_can_be_imported() -> None:
    done = elsewhere(
        """
import importlib, pkgutil
import fedvra
for module in pkgutil.walk_packages(fedvra.__path__, "fedvra."):
    theirs = ("fedvra.flower", "fedvra.engines.ray_", "fedvra.engines.parcel")  # flwr and ray make demands of their own
    if not module.name.startswith(("fedvra.__main__", *theirs)):
        importlib.import_module(module.name)
from fedvra.engines import ray_engine
from fedvra.flower import client_ledger
"""
    )
    assert done.returncode == 0, done.stderr
