"""The command ``fedvra``: one small module per verb, imported when it is needed.

Nothing here or in those modules imports torch, numpy or matplotlib before a verb is run, so ``--help`` answers at once.

Imports core, privacy, state, samplers, data, algorithms, engines, theory, tasks, runs, show, callbacks, studies, flower,
reproduce, bench.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from fedvra import __version__
from fedvra.cli._options import Named
from fedvra.core import accelerators
from fedvra.core.errors import FedvraError, RunInterrupt

VERBS = (
    "demo",
    "run",
    "compare",
    "tune",
    "resume",
    "report",
    "export",
    "reproduce",
    "check",
    "tasks",
    "algorithms",
    "data",
    "bench",
    "doctor",
    "federation",
    "privacy",
)
"""In the order of the help. A verb is a click command named ``command`` in the module of its name."""


class Verbs(Named):
    """Finds verbs by module, and turns every failure into one sentence on stderr and an exit code: 1 failed, 2 bad usage."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{name}").command
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            with warnings.catch_warnings(), accelerators.own_process():
                warnings.showwarning = _warn
                code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except FedvraError as error:
            _fail(str(error), error.exit_code)
        except click.ClickException as error:
            where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "fedvra"
            _fail(f"{error.format_message().removesuffix('.')} (see `{where} --help`).", error.exit_code)
        except (click.Abort, KeyboardInterrupt) as error:
            saved = error.__cause__ if isinstance(error.__cause__, RunInterrupt) else None  # click wraps it
            _fail(str(saved or "interrupted; what was written so far stays readable."), 1)
        except BrokenPipeError:  # the reader has seen enough (`fedvra ... | head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            _fail(f"{error.filename or 'a file'}: {error.strerror}.", 1)
        sys.exit(code if isinstance(code, int) else 0)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """A warning as a sentence, without the line of code that gave it."""
    click.echo(f"Warning: {message}", err=True)


def _fail(message: str, code: int) -> NoReturn:
    said = f"Error: {message}"
    if sys.stderr.isatty():  # a terminal would break the line inside a word
        width = shutil.get_terminal_size().columns
        said = textwrap.fill(said, max(20, width), break_long_words=False, break_on_hyphens=False)
    click.echo(said, err=True)
    sys.exit(code)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="fedvra")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Client-variance-reduced adaptive federated learning: one rule, ten algorithms, an exact and fast simulator.

    \b
    fedvra demo                                  five algorithms on a small task, in under a minute
    fedvra run mnist --algorithm fedvra          one run
    fedvra compare mnist --seeds 0-2             several, with mean and spread
    fedvra tune mnist --over lr=0.01,0.03,0.1    the best of some settings
    fedvra resume runs/mnist-fedvra-seed0        continue after Ctrl-C or a crash
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
