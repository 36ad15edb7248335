"""Models of many kinds through ``fv.simulate`` beside a plain autograd loop, tensor by tensor: ``pytest tests/zoo -k name``."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import fedvra as fv
from zoo.asitwas import differences, likeness
from zoo.cases import Case
from zoo.collection import CASES
from zoo.running import compare, path_of, shape_of, simulate

DOUBLE, SINGLE = torch.float64, torch.float32
RIGHT = [case for case in CASES if not case.refused]
PATHS = ("eager", "traced", "block")


def named(cases: list[Case]) -> dict[str, Any]:
    return {"argvalues": cases, "ids": [case.name for case in cases]}


@contextmanager
def allowed(case: Case) -> Iterator[None]:
    """Warnings that the case's own libraries give, and a refusal where that is as good as right numbers."""
    with warnings.catch_warnings():
        for message in case.warns:
            warnings.filterwarnings("ignore", message=message)
        try:
            yield
        except fv.FedvraError as refusal:
            if not case.may_refuse or not re.search(case.may_refuse, str(refusal)):
                raise


def one_of(case: Case, salt: str) -> str:
    """One of the case's shapes, the same in every run."""
    return case.shapes[zlib.crc32(f"{case.name}/{salt}".encode()) % len(case.shapes)]


@pytest.mark.parametrize("shape", ["even", "odd"])
@pytest.mark.parametrize("case", **named(RIGHT))
def test_numbers(case: Case, shape: str) -> None:
    """On the path that the library chooses, in float64."""
    if shape not in case.shapes:
        pytest.skip("not for this case")
    with allowed(case):
        compare(case, simulate(case, shape_of(case, shape, DOUBLE)), shape, DOUBLE)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", **named(RIGHT))
def test_paths(case: Case, path: str) -> None:
    """On a path that is asked for (where it is refused, on the one instead), in float64."""
    if case.eager and path != "traced":
        pytest.skip("it takes the eager path in any case")
    shape = one_of(case, path)
    with allowed(case):
        compare(case, simulate(case, shape_of(case, shape, DOUBLE), path), shape, DOUBLE)


@pytest.mark.parametrize("case", **named([case for case in RIGHT if "even" in case.shapes and not case.eager]))
def test_one_step(case: Case) -> None:
    """All clients at once, one step each from a common point."""
    with allowed(case):
        compare(case, simulate(case, shape_of(case, "one step", DOUBLE), "block"), "one step", DOUBLE)


@pytest.mark.parametrize("case", **named([case for case in RIGHT if case.single]))
def test_single_precision(case: Case) -> None:
    shape = one_of(case, "float32")
    with allowed(case):
        compare(case, simulate(case, shape_of(case, shape, SINGLE)), shape, SINGLE)


@pytest.mark.parametrize("case", **named(RIGHT))
def test_two_workers(case: Case) -> None:
    """The number of workers changes no bit."""
    dtype = (DOUBLE, SINGLE)[zlib.crc32(case.name.encode()) % 2]
    shape = shape_of(case, one_of(case, "workers"), dtype)
    with allowed(case):
        one, two = (simulate(case, shape, workers=workers) for workers in (1, 2))
        assert torch.equal(one.x0, two.x0)
        assert torch.equal(one.lam, two.lam)
        assert (one.aux is None) == (two.aux is None)
        assert one.aux is None or torch.equal(one.aux, two.aux)
        assert [m["train_loss"] for m in one.metrics] == [m["train_loss"] for m in two.metrics]


@pytest.mark.parametrize("case", **named([case for case in RIGHT if not case.lazy]))
def test_the_module_is_given_back(case: Case) -> None:
    """Weights, buffers, gradients, flags, hooks and plain attributes are as they were; old gradients change nothing."""
    shape = one_of(case, "given back")
    with allowed(case):
        module, loss = case.build(DOUBLE)
        module.train(zlib.crc32(case.name.encode()) % 3 > 0)
        for p in module.parameters():
            if p.requires_grad:
                p.grad = torch.full_like(p, 0.5)
        before = likeness(module)
        history = simulate(case, shape_of(case, shape, DOUBLE), subject=(module, loss))
        changed = differences(before, likeness(module))
        assert not changed, "the module is not as it was:\n  " + "\n  ".join(changed[:12])
        compare(case, history, shape, DOUBLE)
        changed = differences(before, likeness(module))
        assert not changed, "history.model() changed the module:\n  " + "\n  ".join(changed[:12])


@pytest.mark.parametrize("case", **named([case for case in RIGHT if case.eager or case.fast]))
def test_the_path_is_said(case: Case) -> None:
    """What cannot be recorded goes to autograd, and what can be is not kept from it."""
    with allowed(case):
        history = simulate(case, shape_of(case, case.shapes[0], DOUBLE))
        assert (path_of(history) == "eager") == case.eager, str(history.path)
        if case.eager:
            assert len(str(history.path)) > len("eager"), "the reason is not said"


@pytest.mark.parametrize("case", **named([case for case in CASES if case.refused]))
def test_refusals(case: Case) -> None:
    """A clear no, which names what is in the way."""
    with warnings.catch_warnings():
        for message in case.warns:
            warnings.filterwarnings("ignore", message=message)
        with pytest.raises(fv.FedvraError, match=case.refused):
            simulate(case, shape_of(case, case.shapes[0], SINGLE))


def test_the_collection_is_large_and_its_names_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 80
