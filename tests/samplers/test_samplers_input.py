"""Samplers as they are written: on the command line, in Python, in a file of one's own; and what is refused."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import fedvra.samplers
from fedvra.core.errors import UsageError
from fedvra.samplers import (
    SAMPLERS,
    Availability,
    Bernoulli,
    Cyclic,
    Full,
    PowerOfChoice,
    Replay,
    Sampler,
    Uniform,
    Weighted,
    parse_sampler,
)
from fedvra.samplers.base import ByNumber

# --- bad input ---------------------------------------------------------------------------------------------------------

BAD = [
    (lambda: Uniform(11), "m = 11 is more than the number of clients, 10; choose at most 10"),
    (lambda: Uniform(0), "m must be at least 1, got 0"),
    (lambda: Uniform(-3), "m must be at least 1, got -3"),
    (lambda: Uniform(2.5), "m must be a whole number, got 2.5"),
    (lambda: Uniform(True), "m must be a whole number, got True"),
    (lambda: Bernoulli(0), r"p must be in \(0, 1\], got 0\."),
    (lambda: Bernoulli(1.1), r"p must be in \(0, 1\], got 1\.1"),
    (lambda: Bernoulli(float("nan")), r"p must be in \(0, 1\], got nan"),
    (lambda: Bernoulli([0.5] * 9 + [-0.1]), r"p must be in \(0, 1\], got -0\.1 for client 9"),
    (lambda: Bernoulli([0.5] * 9), r"a table of 10 \(one per client\), got shape \[9\]"),
    (lambda: Bernoulli(0.5, to=1.01), r"p must be in \(0, 1\], got 1\.01 for client 9"),
    (lambda: Bernoulli([0.5] * 10, to=0.9), "leave it out where p is a table"),
    (lambda: Bernoulli("often"), "Bernoulli: p must be numbers"),
    (lambda: Weighted([0.25] * 10), r"sum to 2\.5, but .* must be a whole number; scale them, e\.g\. p \* 2 /"),
    (lambda: Weighted([0.01] * 10), r"sum to 0\.1, but .* p \* 1 /"),
    (lambda: Weighted([0.2] * 9 + [0.2 + 1e-6]), "must be a whole number"),
    (lambda: Weighted([1.5, 0.5] + [0.125] * 8), r"p must be in \(0, 1\], got 1\.5 for client 0"),
    (lambda: Weighted([0.0, 1.0] + [0.125] * 8), "got 0 for client 0"),
    (lambda: Weighted([0.2] * 5), r"a table of 10 numbers .* got shape \[5\]"),
    (lambda: Weighted(0.2), r"a table of 10 numbers .* got shape \[\]"),
    (lambda: Weighted([[0.2], [0.1, 0.3]]), "rows of one length"),
    (lambda: PowerOfChoice(3, 11), "candidates = 11 is more than the number of clients, 10"),
    (lambda: PowerOfChoice(5, 4), "m = 5 is more than the number of candidates, 4"),
    (lambda: PowerOfChoice(0, 4), "m must be at least 1"),
    (lambda: PowerOfChoice(1, 4, prior=0), "prior must be a positive number"),
    (lambda: Cyclic(), "either m or groups"),
    (lambda: Cyclic(2, groups=[[0]]), "either m or groups, and not both"),
    (lambda: Cyclic(11), "m = 11 is more than"),
    (lambda: Cyclic(groups=[list(range(9))]), "client 9 is in none"),
    (lambda: Cyclic(groups=[list(range(9)), [10]]), "no client 10; the clients are 0 to 9"),
    (lambda: Cyclic(groups=[list(range(10)), [4]]), "client 4 is named more than once"),
    (lambda: Cyclic(groups=[[0.5]]), "group 0 must be a list of client numbers"),
    (lambda: Availability(Uniform(11), period=2, duty=0.5), "m = 11 is more than"),
    (lambda: Availability("uniform", period=2, duty=0.5), "inner must be a sampler"),
    (lambda: Availability(Full()), "either period and duty, or a table, or a function"),
    (lambda: Availability(Full(), period=2, duty=0.5, table=[[True] * 10]), "either period and duty, or"),
    (lambda: Availability(Full(), period=2), "period and duty go together"),
    (lambda: Availability(Full(), period=0, duty=0.5), "period must be at least 1"),
    (lambda: Availability(Full(), period=2, duty=0), r"duty must be in \(0, 1\]"),
    (lambda: Availability(Full(), period=2, duty=1.5), r"duty must be in \(0, 1\]"),
    (lambda: Availability(Full(), table=[[True] * 9]), r"shape \[R, N\] with N = 10 clients, got \[1, 9\]"),
    (lambda: Availability(Full(), table=[True] * 10), r"shape \[R, N\] with N = 10 clients, got \[10\]"),
    (lambda: Availability(Full(), table=np.zeros((0, 10), bool)), r"got \[0, 10\]"),
    (lambda: Availability(Full(), table=[[0.5] * 10]), "nothing but True and False"),
    (lambda: Availability(Full(), table=[["yes"] * 10]), "nothing but True and False"),
    (lambda: Availability(Full(), function=3), "function must be callable"),
    (lambda: Replay([[0], [10]]), "cohort of round 1: there is no client 10; the clients are 0 to 9"),
    (lambda: Replay([[-1]]), "there is no client -1"),
    (lambda: Replay([[2, 2]]), "client 2 is named more than once"),
    (lambda: Replay([[0.5]]), "cohort of round 0 must be a list of client numbers"),
    (lambda: Replay([3]), "cohort of round 0 must be a list of client numbers"),
    (lambda: Replay([[0], [1]], [0.5, 0.5]), r"must be one number or 10 \(one per client\), got 2"),
    (lambda: Replay([[0], [1]], [[0.5]]), "2 cohorts but probabilities for 1 rounds"),
    (lambda: Replay([[0], [1, 2]], [[0.5], [0.5] * 3]), r"round 1 must be one number, 10 .* or 2 .* got shape \[3\]"),
    (lambda: Replay([[0], [1]], 0.0), r"in \(0, 1\] .* client 0 in round 0 is not"),
    (lambda: Replay([[0], [1]], [[0.5], [2.0]]), r"in \(0, 1\] .* client 1 in round 1 is not"),
    (lambda: Replay([[0]], ["x"]), "must be numbers"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[f"{k}" for k in range(len(BAD))])
def test_bad_input_is_refused_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message) as caught:
        make().check(10)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


# --- the command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform", Uniform(10)),
        (" uniform ", Uniform(10)),
        ("full", Full()),
        ("bernoulli:0.1", Bernoulli(0.1)),
        ("bernoulli:p=0.1", Bernoulli(0.1)),
        ("bernoulli:0.01,to=0.19", Bernoulli(0.01, to=0.19)),
        ("power-of-choice:20", PowerOfChoice(10, 20)),
        ("power-of-choice:20,prior=3", PowerOfChoice(10, 20, 3.0)),
        ("cyclic", Cyclic(10)),
        ("cyclic:reshuffle=true", Cyclic(10, reshuffle=True)),
        ("availability:period=24,duty=0.5,inner=uniform", Availability(Uniform(10), 24, 0.5)),
        ("availability:inner=bernoulli:0.1, period=24, duty=0.5", Availability(Bernoulli(0.1), 24, 0.5)),
    ],
)
def test_parse(text, expected):
    assert repr(parse_sampler(text, cohort_size=10)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom", "there is no sampler 'unifrom': did you mean 'uniform'"),
        ("", "there is no sampler ''"),
        ("uniform:3", "takes no values, so there is no place for '3' .* --cohort"),
        ("uniform:m=3", "set m with --cohort, the size of the cohort"),
        ("full:1", "'full' takes no values"),
        ("bernoulli", "'bernoulli' needs p: write bernoulli:p=VALUE"),
        ("bernoulli:", "'bernoulli' needs p"),
        ("bernoulli:x", "p must be a number, got 'x'"),
        ("bernoulli:0.1,0.2,0.3", "takes only p, to, so there is no place for '0.3'"),
        ("bernoulli:0.1,p=0.2", "p is given twice"),
        (
            "power-of-choice:candidate=3",
            "option of the sampler 'power-of-choice' 'candidate': did you mean 'candidates'",
        ),
        ("power-of-choice:2.5", "candidates must be a whole number, got '2.5'"),
        ("cyclic:reshuffle=yes", "reshuffle must be true or false, got 'yes'"),
        ("cyclic:groups=1", "groups of the sampler Cyclic cannot be written on the command line"),
        ("weighted", r"cannot be written on the command line; use Weighted\(p=...\) from Python"),
        ("replay", r"use Replay\(cohorts=...\) from Python"),
        ("availability:period=24,duty=0.5", "'availability' needs inner"),
        ("availability:inner=unifrom,period=24,duty=0.5", "did you mean 'uniform'"),
    ],
)
def test_parse_errors_say_what_to_write(text, message):
    with pytest.raises(UsageError, match=message):
        parse_sampler(text, cohort_size=10)


NEW_SAMPLER = """
from dataclasses import dataclass
import numpy as np
from fedvra.samplers.base import SAMPLERS, Sampler

@dataclass(frozen=True)
class FirstOnes(Sampler):
    m: int
    skip: int = 0
    exact = True

    def draw(self, round, seed, total, losses):
        return np.arange(self.skip, self.skip + self.m)

    def probabilities(self, round, clients, total, history):
        return np.ones(len(clients))

    def check(self, total):
        pass

SAMPLERS.add("first-ones", FirstOnes)
"""


def test_a_file_in_the_folder_is_all_that_a_new_sampler_needs(tmp_path):
    (tmp_path / "first_ones.py").write_text(NEW_SAMPLER)
    code = (
        "import fedvra.samplers as s; "
        f"s.__path__.append({str(tmp_path)!r}); "
        "print(s.parse_sampler('first-ones:2', 4), 'first-ones' in s.SAMPLERS.names())"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "FirstOnes(m=4, skip=2) True"


def test_samplers_are_final_documented_and_known_by_name():
    for kind in (Availability, Bernoulli, Cyclic, Full, PowerOfChoice, Replay, Uniform, Weighted):
        assert kind in dict(SAMPLERS.items()).values()
        assert kind.__bases__ in ((Sampler,), (Sampler, ByNumber))
        assert ">>>" in (kind.__doc__ or "")


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(fedvra.samplers.__path__)])
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"fedvra.samplers.{name}")).failed == 0


def test_no_torch_is_needed():
    code = "import sys, fedvra.samplers, fedvra.samplers.work; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
