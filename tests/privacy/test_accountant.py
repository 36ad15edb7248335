"""Epsilons against closed forms, published values and a second accountant."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from fedvra.cli import main
from fedvra.core.errors import UsageError
from fedvra.core.record_dp import RecordDP, as_privacy, parse_privacy
from fedvra.privacy.accountant import Answer, epsilon, most_steps, noise_for, together
from fedvra.privacy.spending import Spending

dp_accounting = pytest.importorskip("dp_accounting", reason="the extra fedvra[privacy] is not installed")


def test_without_sampling_it_is_the_gaussian_mechanism_in_closed_form() -> None:
    """T answers of noise s are one of noise s/sqrt(T), whose Rényi divergence of order a is a*T/(2 s^2)."""
    from dp_accounting.rdp import RdpAccountant

    orders, steps, noise, delta = np.asarray(RdpAccountant().orders), 30, 20.0, 1e-5
    divergence = orders * steps / (2 * noise**2)
    by_hand = np.min(divergence + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
    assert epsilon({Answer(1.0, noise): steps}, delta) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)])
def test_published_values(noise: float, epochs: int, published: float) -> None:
    """The table of TensorFlow Privacy's MNIST tutorial (commit 047e1ee): 60000 samples, batches of 256, delta 1e-5.

    They were made with the older way from divergences to epsilon, so that one is used here; ours gives less.
    """
    from fedvra.privacy.accountant import _divergences

    step, steps = Answer(256 / 60000, noise), math.ceil(epochs * 60000 / 256)
    orders, divergences = _divergences(step)
    assert np.min(steps * divergences + math.log(1e5) / (orders - 1)) == pytest.approx(published, rel=0.003)
    assert epsilon({step: steps}, 1e-5) < published


def test_it_bounds_a_tighter_accountant_from_above() -> None:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    tight = PLDAccountant(value_discretization_interval=1e-3)
    tight.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 200)
    found, best = epsilon({Answer(0.1, 2.0): 200}, 1e-5), tight.get_epsilon(1e-5)
    assert best < found < 1.15 * best


def test_accounts_add_up_and_no_noise_promises_nothing() -> None:
    step, told = Answer(0.1, 2.0), Answer(1.0, 5.0)
    both = together([{step: 10}, {step: 5, told: 1}])
    assert both == {step: 15, told: 1}
    assert epsilon({step: 15}, 1e-5) < epsilon(both, 1e-5)
    assert epsilon({}, 1e-5) == 0
    assert epsilon({Answer(0.1, 0.0): 1}, 1e-5) == math.inf


def test_the_last_step_that_is_affordable() -> None:
    step, told = Answer(0.1, 2.0), {Answer(1.0, 5.0): 1}
    most = most_steps(step, told, 1e-5, 4.0)
    assert epsilon({**told, step: most}, 1e-5) <= 4.0 < epsilon({**told, step: most + 1}, 1e-5)
    assert most_steps(step, {Answer(1.0, 0.1): 1}, 1e-5, 4.0) == 0


def test_noise_for_an_epsilon_is_the_least() -> None:
    noise = noise_for(4.0, 0.1, 500, 1e-5, {})
    assert epsilon({Answer(0.1, noise): 500}, 1e-5) <= 4.0 < epsilon({Answer(0.1, 0.99 * noise): 500}, 1e-5)
    with pytest.raises(UsageError, match="alone cost"):
        noise_for(1.0, 0.1, 500, 1e-5, {Answer(1.0, 0.5): 1})


def test_clients_of_other_sizes_have_other_epsilons() -> None:
    spending = Spending(RecordDP(noise=2, max_epsilon=4), np.array([100, 1000, 100]), batch_size=20)
    found = spending.epsilons(np.array([50, 50, 0]))
    assert found[0] > found[1] > found[2] > 0  # telling n_i has cost the third something
    most = spending.most()
    assert most[0] == most[2] < most[1]
    assert spending.record(np.array([50, 50, 0]))["epsilon"] == found[0]


def test_the_language_of_the_command_line() -> None:
    rule = RecordDP(clip=0.5, noise=2, max_epsilon=8)
    assert parse_privacy(rule.text()) == rule == as_privacy("record:clip=0.5,noise=2,max_epsilon=8")
    assert parse_privacy("record:clip=inf,noise=0").clip == math.inf
    for text, message in (
        ("records:clip=1", "record"),
        ("record:clip=0", "clip must be > 0"),
        ("record:noise=0,max_epsilon=3", "set noise"),
        ("record:clip=inf", "must be a number"),
        ("record:delta=1", "delta"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_privacy(text)
    with pytest.raises(UsageError, match="privacy must be"):
        as_privacy(3)


def test_the_verb() -> None:
    def ask(*words: str) -> dict[str, float]:
        done = CliRunner().invoke(main, ["privacy", "--samples", "500", "--json", *words])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)  # type: ignore[no-any-return]

    found = ask("--noise", "2", "--batch-size", "50", "--rounds", "10")
    assert found["steps"] == 200
    assert found["rate"] == 0.1
    expected = epsilon({Answer(0.1, 2.0): 200, Answer(1.0, 5.0): 1}, 1e-5)
    assert found["epsilon"] == pytest.approx(expected)
    back = ask("--epsilon", str(found["epsilon"]), "--rounds", "10")
    assert back["noise"] == pytest.approx(2.0, rel=0.01)
    told = CliRunner().invoke(main, ["privacy", "--samples", "500", "--noise", "2", "--steps", "3", "--rounds", "1"])
    assert "3 steps" in told.output
    both = CliRunner().invoke(main, ["privacy", "--samples", "500"])
    assert both.exit_code == 2
