"""``fedvra check``: is a run covered by the paper's theorems, and what would be."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvra.cli._options import Grouped, configured, json_option, run_options

if TYPE_CHECKING:
    from rich.console import Console

    from fedvra.theory.conditions import Condition
    from fedvra.theory.coverage import Coverage


@click.command(cls=Grouped, short_help="Is a run covered by the paper's theorems, and what would be?")
@click.argument("target", metavar="CONFIG|DIR|TASK")
@click.option("--look-at", metavar="N", default="20", show_default=True, help="Clients to examine, at most.")
@click.option(
    "--samples",
    metavar="N",
    default="200",
    show_default=True,
    help="Samples per client to estimate curvature from; full takes them all.",
)
@run_options()
@json_option
def command(target: str, look_at: str, samples: str, as_json: bool, **options: Any) -> None:
    """Is the run of a CONFIG file, of a run's folder DIR, or of a TASK with its defaults covered by Theorem 1 (or 2)?

    Takes the options of `fedvra run`; they win over the file. Estimates L_i by Lanczos on Hessian-vector products
    (at the start, and at the checkpoint of DIR where there is one) and the gradients' variance from minibatches; shows both
    sides of every condition, and proposes gamma, eta, a and d that satisfy them, with what the theorem then promises. The
    estimates are local, so a yes is no proof. Exit code 0 whether covered or not: see "covered" in --json.

    \b
    Examples:
      fedvra check digits
      fedvra check mnist --set gamma=0.1 --set a=10
      fedvra check runs/mnist-fedvra --json
    """
    from fedvra.runs import option_text

    clients = option_text.whole(1)("look-at", look_at)
    few = option_text.or_word("full", option_text.whole(1), stands_for=None)("samples", samples)
    layers, folder = _target(target)
    said = {name: value for name, value in options.items() if value not in (None, ())}
    config = configured(layers, said)

    from fedvra.runs.config import build
    from fedvra.runs.files import finite
    from fedvra.show.terminal import make_console
    from fedvra.theory.check import examine

    restore = None if folder is None else partial(_restored, folder)
    coverage = examine(build(config), config.rounds, clients, few, restore)
    if as_json:
        click.echo(json.dumps(finite(coverage.to_dict()), indent=2))
    else:
        present(coverage, config.task, make_console())


def _target(target: str) -> tuple[dict[str, Any], Path | None]:
    """The options that are meant, and the run's folder where it is one."""
    from fedvra.runs.config import read_config

    path = Path(target)
    if path.is_dir():
        from fedvra.runs.files import RunFolder

        return RunFolder(path).config().to_dict(), path
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return read_config(path), None
    return {"task": target}, None


def _restored(folder: Path, federation: Any) -> int:
    from fedvra.engines import checkpoint
    from fedvra.runs.files import RunFolder

    checkpoints = RunFolder(folder).checkpoints
    return checkpoint.restore(federation, checkpoints) if checkpoints.is_dir() else 0


def present(coverage: Coverage, task: str, console: Console) -> None:
    """For people: what was measured, the conditions, the promise, the proposal, and what to make of the figures."""
    from fedvra.show.terminal import Column, say, table
    from fedvra.theory.coverage import quantiles

    settings, estimates = coverage.settings, coverage.estimates
    kind = "exact" if estimates.exact else "local, a lower bound" if estimates.whole else "local, from some samples"
    measured = {
        f"L_i, smoothness ({kind})": estimates.L,
        "sigma^2/S, variance of a step's gradient": estimates.noise,
        "p, taking part and being heard": settings.p,
        "Q, local steps": settings.steps,
        "||grad f_i(x0)||^2 at the start": coverage.start.xi,
    }
    rows = [[name, *map(_short, quantiles(values).values())] for name, values in measured.items()]
    numbers = [Column(name, number=True) for name in ("min", "median", "max")]
    console.print(table([Column("measured, per client", wrap=20), *numbers], rows))
    if coverage.conditions:
        rows = [
            [
                _verdict(condition),
                condition.name,
                condition.formula,
                _range(condition.left),
                _range(condition.right),
            ]
            for condition in coverage.conditions
        ]
        columns = [
            Column("", wrap=9),
            Column(f"condition of Theorem {coverage.theorem}", wrap=14),
            Column("formula", wrap=14),
            Column("left side", wrap=10),
            Column("right side", wrap=10),
        ]
        console.print(table(columns, rows))
        say(console, "Sides are min / median / max over the clients looked at.\n")
    verdict = "is covered" if coverage.covered else "is not covered"
    say(console, f"{coverage.label} on {task} {verdict} by Theorem {coverage.theorem}.")
    for reason in coverage.reasons:
        say(console, f"- {reason}")
    if coverage.covered and coverage.setting is not None:
        say(console, "\n".join(_promised(coverage, coverage.setting)))
    elif coverage.proposal is not None:
        say(console, "\n".join(["", *_proposed(coverage, coverage.proposal)]))
    else:
        say(console, "\nWith the same problem, sampling and local work no stepsizes would be covered.")
    say(console, "\nAbout these figures:")
    for note in coverage.notes:
        say(console, f"- {note}")


def _proposed(coverage: Coverage, proposal: Any) -> list[str]:
    found = coverage.proposed()
    factor = found.pop("lr_y_factor", None)
    shown = ", ".join(f"{name} = {_setting(value)}" for name, value in found.items())
    how = "FedVRA, by appendix B," if coverage.theorem == 1 else "FedVRA-U"
    lines = [f"With the same sampling and local work these would be covered: {how} with {shown}"]
    if all(isinstance(found[name], float) for name in ("gamma", "a", "d", "eta")):
        sets = " ".join(f"--set {name}={found[name]:.6g}" for name in ("gamma", "a", "d"))
        also = "" if factor is None else f", and in Python {factor:.6g} times the problem's lr_y"
        lines.append(f"  as options: {sets} --lr {found['eta']:.6g}{also}")
    return [*lines, *_promised(coverage, proposal)]


def _promised(coverage: Coverage, setting: Any) -> list[str]:
    """The bound, in words."""
    found = {name: _short(value) for name, value in coverage.promise(setting).items() if value is not None}
    lines = [f"Then P^0 = {found['potential']}, inf f >= {found['lower']}, beta = {found['beta']}."]
    mean = f"the mean of ||grad f(x0)||^2 over {coverage.rounds} rounds"
    now = f"(it is {_short(coverage.start.norm2)} at the start)"
    if coverage.theorem == 2:
        lines.append(
            f"Without noise the mean gap G over {coverage.rounds} rounds is at most {found['rate_constant']}*"
            f"(P^0 - inf f)/R = {found['bound_without_noise']}."
        )
        return lines
    lines += [
        f"As printed, D_1 = {found['D1']} and D_2 = {found['D2']} bound {mean} by {found['bound_printed']}.",
        f"The proof gives D_1 = {found['D1_proved']}, D_2 = {found['D2_proved']} and {found['bound']} {now}; "
        f"without noise {found['bound_without_noise']}.",
    ]
    if "rounds_until_it_tells" in found:
        lines.append(
            f"Without noise that is below its value at the start after {found['rounds_until_it_tells']} rounds."
        )
    if "corollary" in found:
        lines.append(
            f"Corollary 1: {found['corollary']}; with batches of sqrt(R) samples it falls like N/(m R) + N sigma^2/(m sqrt(R))."
        )
    else:
        lines.append("Corollary 1 is for clients with equal p, Q, a, d, gamma and eta.")
    return lines


def _verdict(condition: Condition) -> str:
    if condition.holds:
        return "holds"
    return "FAILS" if len(condition.left) == 1 else f"FAILS for {1 - condition.share:.0%}"


def _range(values: Any) -> str:
    from fedvra.theory.coverage import quantiles

    shown = [_short(value) for value in quantiles(values).values()]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def _setting(value: float | dict[str, float]) -> str:
    return _short(value) if isinstance(value, float) else f"{_short(value['min'])} to {_short(value['max'])} by client"


def _short(value: float) -> str:
    return f"{value:.3g}"
