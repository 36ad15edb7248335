"""``fedvra privacy``: what epsilon a run will come to, or the noise that an epsilon takes."""

from __future__ import annotations

import json
from typing import Any

import click

from fedvra.cli._options import json_option
from fedvra.core.errors import require


@click.command(short_help="The epsilon of a run, or the noise that an epsilon takes.")
@click.option("--samples", metavar="N", required=True, help="Records of the client, as reported to others.")
@click.option("--noise", metavar="SIGMA", help="Noise on a step's sum, in units of the clipping length.")
@click.option("--epsilon", metavar="EPS", help="Instead of --noise: find the least noise that stays within this.")
@click.option("--batch-size", metavar="N", default="50", show_default=True, help="Expected records per step, or full.")
@click.option("--rounds", metavar="N", default="100", show_default=True, help="Rounds in which the client takes part.")
@click.option("--epochs", metavar="N", default="2", show_default=True, help="Local passes over the data in a round.")
@click.option("--steps", metavar="N", help="Local steps in a round, instead of epochs.")
@click.option("--delta", metavar="DELTA", default="1e-5", show_default=True, help="Should be well below 1/N.")
@click.option("--count-noise", metavar="SIGMA", default="5", show_default=True, help="Noise on the number of records.")
@json_option
def command(as_json: bool, **given: str | None) -> None:
    """What record-level differential privacy comes to for one client, which takes part in so many ROUNDS.

    A client is drawn into a share of a run's rounds: of 100 rounds with 10 of 100 clients each, about ten. Epsilon is that of
    all its rounds together, for neighbours that differ in one record; the clipping length does not matter to it.

    \b
    Examples:
      fedvra privacy --noise 2 --samples 500 --rounds 100
      fedvra privacy --epsilon 8 --samples 500 --rounds 100 --batch-size 50
    """
    found = _found(given)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"epsilon {found['epsilon']:.3f} at delta {found['delta']:g}, with noise {found['noise']:g}")
    click.echo(f"{found['steps']} steps, each with a record's chance of {found['rate']:.4g} to be part of it")
    if found["count_noise"]:
        click.echo(f"and the number of samples told once, with noise {found['count_noise']:g}")


def _found(given: dict[str, str | None]) -> dict[str, Any]:
    from fedvra.runs import option_text as read

    said = {name: text for name, text in given.items() if text is not None}
    require(("noise" in said) != ("epsilon" in said), "give --noise to learn epsilon, or --epsilon to learn the noise.")

    def number(name: str) -> float:
        return float(read.non_negative(name.replace("_", "-"), said[name]))

    samples, rounds = (read.whole(1)(name, said[name]) for name in ("samples", "rounds"))
    batch = read.or_word("full", read.whole(1), stands_for=None)("batch-size", said["batch_size"])

    import numpy as np

    from fedvra.core.record_dp import RecordDP
    from fedvra.privacy.accountant import Answer, epsilon, noise_for, together
    from fedvra.privacy.spending import count_account
    from fedvra.samplers.work import Epochs, Steps, Work

    work: Work = (
        Steps(read.whole(1)("steps", said["steps"]))
        if "steps" in said
        else Epochs(read.whole(1)("epochs", said["epochs"]))
    )
    one, held = np.zeros(1, dtype=np.int64), np.array([samples])
    steps = rounds * int(work.steps(0, one, held, batch, 0)[0])
    rule = RecordDP(noise=0, delta=number("delta"), count_noise=number("count_noise"))
    (rate,) = rule.rates(held, batch).tolist()
    told = count_account(rule)
    if "noise" in said:
        noise = number("noise")
        require(noise > 0, "--noise must be > 0: without noise there is no epsilon.")
    else:
        target = number("epsilon")
        require(target > 0, "--epsilon must be > 0.")
        noise = noise_for(target, rate, steps, rule.delta, told)
    account = together([told, {Answer(rate, noise): steps}])
    return {
        "epsilon": epsilon(account, rule.delta),
        "delta": rule.delta,
        "noise": noise,
        "rate": rate,
        "steps": steps,
        "count_noise": rule.count_noise,
    }
