"""Stepsizes that change over rounds, from Python and from the command line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.runs.config import build, configure
from harness import simulate
from quadratics import case


def rates(lr: Any, rounds: int) -> list[float]:
    cohorts = [fv.Cohort(r, 1, *(np.zeros(1, dtype=np.int64) for _ in range(6))) for r in range(rounds)]
    return [lr if isinstance(lr, float) else float(np.broadcast_to(lr(cohort), (1,))[0]) for cohort in cohorts]


def configured(**options: Any) -> Any:
    return build(configure({"task": "digits", "rounds": 6, **options})).lr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lr": "0.1"}, [0.1] * 6),
        ({"lr": "0.1:0.01@3"}, [0.1, 0.1, 0.01, 0.01, 0.01, 0.01]),
        ({"lr": 0.1, "lr_decay": "0.5"}, [0.1 * 0.5**r for r in range(6)]),
        ({"lr": 0.1, "lr_warmup": 4}, [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]),
        ({"lr": 0.2, "lr_cosine": 8}, [0.1 * (1 + math.cos(math.pi * r / 8)) for r in range(6)]),
        ({"lr": "1:0.5@2", "lr_decay": 0.5, "lr_warmup": 2}, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625]),
    ],
    ids=str,
)
def test_the_command_line_says_what_python_says(options, expected):
    assert rates(configured(**options), 6) == pytest.approx(expected, rel=1e-12)


def test_a_stepsize_that_does_not_change_is_the_number_itself():
    assert configured(lr=0.05) == 0.05


def test_options_come_back_from_yaml_as_they_were():
    config = configure({"task": "digits", "lr": "0.1: 0.01@200", "lr_decay": 0.998, "lr_cosine": 300})
    assert configure(config.to_dict()) == config
    assert config.lr == "0.1:0.01@200"
    assert configure({"task": "digits", "lr": "0.1:0.05@20", "rounds": 9}).flat(deciding=True)["lr"] == "0.1:0.05@20"


def test_a_run_takes_it():
    c = case()
    table = np.array([[0.05 * 0.9**r] * c.clients for r in range(c.rounds)])
    found = simulate(fv.Scaffold(), c, fv.Schedule(0.05, decay=0.9))
    assert torch.allclose(found.x0, simulate(fv.Scaffold(), c, table).x0, rtol=0, atol=1e-14)
    each = simulate(fv.Scaffold(), c, fv.Schedule([0.05] * c.clients, decay=0.9))
    assert torch.equal(each.x0, found.x0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"lr": "0.1:0@5"}, "greater than 0 in every round"),
        ({"lr": "0.1:x@5"}, "is not a schedule"),
        ({"lr_decay": 1.1}, "lr_decay must be a number in"),
        ({"lr_cosine": 5}, "falls to 0 after 5 rounds"),
        ({"lr_cosine": 9, "lr_warmup": 9}, "must end before the cosine"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_in_a_sentence(wrong, sentence):
    with pytest.raises(fv.UsageError, match=sentence):
        configured(**wrong)


def test_a_run_may_not_outlast_its_cosine():
    with pytest.raises(fv.UsageError, match="a cosine of 3 rounds"):
        simulate(fv.FedAvg(), case(), fv.Schedule(0.05, cosine=3))
