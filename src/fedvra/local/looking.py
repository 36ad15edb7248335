"""Looking at a model before a run: does it fit the data, and what does a training step change besides the parameters?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedvra.core.errors import UsageError, require
from fedvra.data import trees
from fedvra.local.loan import Batch, Loss
from fedvra.local.randomness import kept_generators, seed_all
from fedvra.local.subject import Findings, Subject

TRIAL_STEP = 1e-3


class Look(NamedTuple):
    """What was found."""

    findings: Findings
    target_dtype: torch.dtype | None
    """What targets are brought to because the loss takes them no other way (float64 or whole numbers, as NumPy has them)."""
    outputs: Any
    """The model's outputs on the first batch, in evaluation mode."""


def look(module: nn.Module, loss: Loss, batch: Batch, seed: int) -> Look:
    """Take two training steps on a batch, note what changed, and leave everything as it was.

    Raises UsageError where the model, the loss and the data do not go together.
    """
    with kept_generators():
        seed_all(seed)
        materialise(module, batch[0])
    check_parameters(module)
    subject = Subject(module, loss)
    with kept_generators():
        with forgotten(subject):
            outputs, target_dtype = _first_step(subject, batch, seed)
        batch = (batch[0], cast_targets(batch[1], target_dtype))
        with forgotten(subject):
            findings = _changes(subject, batch, seed)
        require_reproducible(Subject(module, loss, findings), batch, seed)
    return Look(findings, target_dtype, outputs)


def materialise(module: nn.Module, inputs: Any) -> None:
    """Lazy modules get their shapes from one batch."""
    if any(nn.parameter.is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        training = module.training
        module.eval()
        with torch.no_grad():
            _fitting(lambda: trees.call(module, inputs), inputs, None)
        module.train(training)


def check_parameters(module: nn.Module) -> None:
    """One real dtype, and something to train."""
    for name, p in module.named_parameters():
        require(
            not nn.parameter.is_lazy(p),
            f"parameter {name} has no shape yet: a lazy module needs one batch, so call it on one before this.",
        )
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    require(
        bool(trainable),
        "the model has no parameters to train"
        + (": all of them have requires_grad=False." if list(module.parameters()) else "."),
    )
    dtypes = {p.dtype: name for name, p in trainable.items()}
    require(
        len(dtypes) == 1,
        "the parameters to be trained have several dtypes ("
        + ", ".join(f"{name}: {dtype}" for dtype, name in dtypes.items())
        + "); use one, e.g. model.float().",
    )
    (dtype,) = dtypes
    require(
        dtype.is_floating_point,
        f"parameter {dtypes[dtype]} is {dtype}: parameters must be real; keep a complex one as "
        "torch.view_as_real(...) of it and apply torch.view_as_complex in forward.",
    )


def require_reproducible(subject: Subject, batch: Batch, seed: int) -> None:
    """The same two steps from the same start, twice: a difference is state that cannot be seen, and so cannot be put back."""
    with forgotten(subject):
        found = []
        for _ in range(2):
            with subject.aside(seed):
                x, aux = subject.gather(), subject.gather_aux()
                losses = []
                for _ in range(2):
                    subject.point_at(x, aux)
                    losses.append(subject.backward(fresh(batch)))
                    with torch.no_grad():
                        x.add_(_flat(subject), alpha=-TRIAL_STEP)
                found.append((torch.stack(losses), x))
    (losses_a, a), (losses_b, b) = found
    tolerance = 1e-5 if a.dtype != torch.float64 else 1e-10
    same = torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    require(
        same and torch.allclose(losses_a, losses_b, rtol=tolerance, atol=tolerance, equal_nan=True),
        "the same steps from the same start come out differently: the model or its loss keeps state that cannot be found "
        "(a generator, a counter in a class or a closure) or draws numbers from a source of its own; keep state in attributes "
        "or buffers of the model, and draw from torch's, Python's or NumPy's global generators.",
    )


def _flat(subject: Subject) -> Tensor:
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in subject.parameters]
    return torch.cat([(g.to_dense() if g.layout != torch.strided else g).reshape(-1) for g in found])


@contextmanager
def forgotten(subject: Subject) -> Iterator[None]:
    """Lent, with buffers that are copies: whatever a trial does to them is forgotten."""
    subject.lend()
    kept = [(held, held.tensor.data) for held in subject.others]
    try:
        for held, data in kept:
            held.tensor.data = data.clone()
        yield
    finally:
        for held, data in kept:
            held.put_back()
            held.tensor.data = data
        subject.give_back()


def fits(subject: Subject, batch: Batch) -> bool:
    """Whether a training step on this batch is possible at all."""
    try:
        with forgotten(subject), subject.aside(0):
            trees.call(subject.module, fresh(batch)[0])
    except (ValueError, RuntimeError):
        return False
    return True


def fresh(batch: Batch) -> Batch:
    """A copy: a model or a loss may work in place on what it is given."""
    return trees.map(torch.clone, batch[0]), trees.map(torch.clone, batch[1])


def cast_targets(targets: Any, dtype: torch.dtype | None) -> Any:
    return targets if dtype is None else trees.map(lambda t: t.to(dtype), targets)


def _first_step(subject: Subject, batch: Batch, seed: int) -> tuple[Any, torch.dtype | None]:
    """The outputs in evaluation mode, and the dtype that the loss wants targets in: as they are wherever that works."""
    inputs, targets = batch
    subject.point_at(subject.gather(), None)
    subject.module.eval()
    seed_all(seed)
    outputs = _fitting(lambda: subject.outputs(fresh((inputs, None))[0]), inputs, targets)
    subject.module.train()
    candidates = [None, subject.spec.dtype, torch.int64]
    refusals: list[UsageError] = []
    for dtype in candidates:
        wanted = cast_targets(targets, dtype)
        if refusals and all(a.dtype == b.dtype for a, b in zip(_tensors(wanted), _tensors(targets), strict=True)):
            continue
        seed_all(seed)
        try:
            _fitting(lambda wanted=wanted: _check_loss(subject, fresh((inputs, wanted))), inputs, targets)  # type: ignore[misc]
        except UsageError as refusal:
            refusals.append(refusal)
        else:
            return outputs, dtype
    raise refusals[0]


def _check_loss(subject: Subject, batch: Batch) -> None:
    for p in subject.parameters:
        p.grad = None
    with torch.enable_grad():
        value = subject.value(batch)
        if not isinstance(value, Tensor) or value.ndim:
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(f"the loss must return one number, the mean over the batch; got {shape}.")
        if not value.requires_grad:
            raise UsageError("the loss does not depend on the parameters to be trained: there is nothing to learn.")
        value.backward()  # type: ignore[no-untyped-call]


def _fitting(attempt: Callable[[], Any], inputs: Any, targets: Any) -> Any:
    """Whatever a user's model raises on the data, as one sentence."""
    try:
        return attempt()
    except UsageError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(
            f"the model does not fit the data: inputs of shape {_shapes(inputs)} and targets of shape {_shapes(targets)} gave "
            f"{type(error).__name__}: {first}"
        ) from error


def _shapes(tree: Any) -> str:
    return ", ".join(f"{list(t.shape[1:])} ({t.dtype})" for t in _tensors(tree)) or "none"


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in trees.leaves(tree) if isinstance(t, Tensor)]


def _changes(subject: Subject, batch: Batch, seed: int) -> Findings:
    """Two steps, each with a move of the parameters: what is there twice alike was changed by neither."""
    x = subject.gather()
    before = [held.tensor.detach().clone() for held in subject.others]
    changed: set[str] = set()
    seed_all(seed)
    for _ in range(2):
        subject.point_at(x, None)
        subject.backward(fresh(batch))
        with torch.no_grad():
            for p in subject.parameters:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-TRIAL_STEP)
        for k, held in enumerate(subject.others):
            now = held.now()
            require(
                now is not None,
                f"training takes the buffer {held.name} away: it must stay where it is, or be a plain attribute.",
            )
            assert now is not None
            require(
                now.shape == before[k].shape,
                f"a training step changes the shape of the buffer {held.name} from {list(before[k].shape)} to "
                f"{list(now.shape)}: call the model on a batch before the run, so that the buffer has its size.",
            )
            if not torch.equal(now.nan_to_num(), before[k].nan_to_num()):
                changed.add(held.name)
            before[k] = now.detach().clone()
    subject.python.changed()
    moving = [held for held in subject.others if held.name in changed]
    return Findings(
        statistics=tuple(held.name for held in moving if held.tensor.is_floating_point()),
        counters=tuple(held.name for held in moving if not held.tensor.is_floating_point()),
    )
