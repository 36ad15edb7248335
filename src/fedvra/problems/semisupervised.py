"""Semi-supervised classification: most samples have lost their label, and their pseudo-labels are the second block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole
from fedvra.data.dataset import FederatedData
from fedvra.local.protocol import Solver, SolverSettings
from fedvra.problems.base import Constrained, HasModel, HasOracle, HasSecondBlock, Parameter, Problem
from fedvra.problems.oracle import Oracle
from fedvra.problems.projections import Projection
from fedvra.problems.supervised import BufferPolicy, Supervised

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class SemiSupervised(
    Problem[FederatedData], HasModel, HasSecondBlock[FederatedData], Constrained, HasOracle[FederatedData]
):
    r"""Cross-entropy where there is a label, and where there is none a pseudo-label that is learned along with the model.

    Client i holds labelled samples :math:`(z_j, t_j), j\in L_i` and unlabelled ones :math:`z_j, j\in U_i`, each of which has a
    pseudo-label :math:`y_j` on the simplex :math:`\Delta` over the classes. With :math:`q_x(z)` the model's probabilities:

    .. math::

        f_i(x, y_i) = \frac{1}{|L_i|}\sum_{j\in L_i} -\log q_x(z_j)_{t_j}
          + \frac{\mu}{|U_i|}\sum_{j\in U_i}\Big(-\langle y_j, \log q_x(z_j)\rangle - \tau\langle y_j, \log\pi_i\rangle
          + \frac{\rho}{2}\|y_j\|^2\Big) + \frac{\text{decay}}{2}\|x\|^2

    cross-entropy against the label, against the pseudo-label, a class prior, and a term that makes f_i strongly convex in y.
    The prior :math:`\pi_i` is what the client's own labels say of its classes (with one more of each, so that none is ruled
    out): clients differ in what they hold, and this is how they know. The gradient in y is smooth, with constant
    :math:`\mu\rho/|U_i|`:

    .. math:: \nabla_{y_j} f_i = \frac{\mu}{|U_i|}\big(\rho\,y_j - \log q_x(z_j) - \tau\log\pi_i\big)

    The gradient in x is that of a supervised problem with soft targets; a batch is drawn from labelled and unlabelled samples
    alike, each weighted so that the step is unbiased.

    Args:
        model: as in ``Supervised``; its outputs are logits, one per class.
        hidden: share of each client's samples that lose their label, classes in proportion (at least one label stays).
        labelled: instead of ``hidden``, which samples of the data set have a label: booleans, one per sample. The targets of
            the others are never trained on; only the report on pseudo-labels looks at them.
        mu, tau, rho: above. A small rho makes pseudo-labels hard, a large one lets them follow the probabilities.
        lr_y: stepsize on y in units of 1/L_y, ``L_y = mu*rho/|U_i|``: with 1, a single step is the exact minimiser.
        steps_y: Q_y.
        constraint: the set X of the model's flat vector, e.g. ``fv.Product.of_parameters(model, {...})``.
        seed: which labels are hidden.

    Departures from the paper: it does not print its objective, and names no Q_y or eta_y.

    >>> import numpy as np, torch, fedvra as fv
    >>> data = fv.split((np.eye(40, 3, dtype=np.float32), np.arange(40) % 2), fv.IID(), clients=4)

    >>> problem = fv.SemiSupervised(lambda: torch.nn.Linear(3, 2), hidden=0.5)
    >>> history = fv.simulate(fv.FedVRAU(), problem=problem, data=data, sampler=fv.Uniform(2), work=fv.Epochs(1), rounds=2)
    >>> len(history.y) > 0  # the pseudo-labels of the clients that took part
    True
    """

    model: nn.Module | Callable[[], nn.Module]
    hidden: float = 0.9
    labelled: Any = None
    mu: float = 1.0
    tau: float = 1.0
    rho: float = 1.0
    lr_y: float = 1.0
    steps_y: int = 1
    weight_decay: float = 0.0
    buffers: BufferPolicy = "refuse"
    constraint: Projection | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.hidden <= 1, f"hidden must be a share between 0 and 1, got {self.hidden}.")
        require(self.mu > 0, f"mu must be > 0, got {self.mu}; for the labelled samples alone use supervised().")
        require(self.tau >= 0, f"tau must be >= 0, got {self.tau}.")
        require(self.rho > 0, f"rho must be > 0, or pseudo-labels are not determined; got {self.rho}.")
        require(0 < self.lr_y < 2, f"lr_y must be between 0 and 2 (in units of 1/L_y), got {self.lr_y}.")
        check_whole("steps_y", self.steps_y)
        object.__setattr__(self, "decay", self.weight_decay)
        self.supervised()  # its own checks

    def supervised(self) -> Supervised:
        """The same model under full supervision: for the references, on ``labelled_part(data)`` and on all of ``data``."""
        known: Supervised = self.__dict__.setdefault(  # one object, for it remembers what it found out about the model
            "_supervised", Supervised(self.model, cross_entropy, self.weight_decay, self.buffers)
        )
        return known

    def has_label(self, data: FederatedData) -> Mask:
        """Which samples of the data set keep their label, [n]."""
        if self.labelled is not None:
            given = np.asarray(self.labelled)
            require(
                given.dtype == np.bool_ and given.shape == (len(data.dataset),),
                f"labelled must hold one boolean per sample, {len(data.dataset)} in all; "
                f"got {given.dtype} of shape {list(given.shape)}.",
            )
            return given
        mask = np.zeros(len(data.dataset), dtype=np.bool_)
        if self.hidden < 1:
            targets = data.dataset.targets.numpy()
            for client in range(data.clients):
                part = data.part(client)
                mask[stratified(part, targets[part], 1 - self.hidden, stream(self.seed, Purpose.LABELS, 0, client))] = (
                    True
                )
        return mask

    def labelled_part(self, data: FederatedData) -> FederatedData:
        """The samples that keep their label, with their owners: what a supervised algorithm could train on."""
        keep = self.has_label(data)[data.indices]
        ends = np.concatenate(([0], np.cumsum(keep)))
        require(
            bool(np.all(np.diff(ends[data.offsets]) > 0)),
            "some client has no label at all, so it cannot be supervised.",
        )
        return replace(data, offsets=ends[data.offsets], indices=data.indices[keep])

    def pseudo_labels(self, data: FederatedData, client: int, row: Tensor) -> tuple[Ints, Tensor]:
        """What a row of ``history.y`` says: the client's unlabelled samples, and the pseudo-label of each [u, classes]."""
        part = data.part(client)
        samples = part[~self.has_label(data)[part]]
        classes = data.dataset.classes or 0
        return samples, row[: len(samples) * classes].view(len(samples), classes)

    # -- what the engine asks for --------------------------------------------------------------------------------------

    def samples(self, data: FederatedData) -> Ints:
        return data.sizes

    def y_width(self, data: FederatedData) -> int:
        missing = np.concatenate(([0], np.cumsum(~self.has_label(data)[data.indices])))
        return int(np.diff(missing[data.offsets]).max()) * (data.dataset.classes or 0)

    def project(self, x_P: Tensor) -> Tensor:
        return x_P if self.constraint is None else self.constraint(x_P)

    def initial(self, seed: int) -> Tensor:
        return self.supervised().initial(seed)

    def initial_aux(self, seed: int) -> Tensor | None:
        return self.supervised().initial_aux(seed)

    def frozen(self, seed: int) -> dict[str, Tensor]:
        return self.supervised().frozen(seed)

    @property
    def aux_is_local(self) -> bool:
        return self.supervised().aux_is_local

    def check(self, data: FederatedData, settings: SolverSettings) -> None:
        if isinstance(data, FederatedData):
            data.dataset.require_single("SemiSupervised")
            labels = data.dataset.labels
            require(
                data.dataset.classes is not None and labels is not None and bool(labels.min() >= 0),
                "SemiSupervised needs classes: targets that are labels 0, 1, 2, ...; which of them count, hidden= or "
                "labelled= says.",
            )
        self.supervised().check(data, settings)
        outputs = self.supervised().look(data, settings).look.outputs
        require(
            outputs.ndim == 2 and outputs.shape[1] == data.dataset.classes,
            f"SemiSupervised needs one output per class, {data.dataset.classes} of them; "
            f"the model gives {list(outputs.shape[1:])}.",
        )
        require(
            bool(self.has_label(data)[data.indices].any()),
            "no sample has a label: classes cannot be learned from unlabelled data alone; hide fewer, or try Clustering.",
        )

    def solver(self, data: FederatedData, settings: SolverSettings) -> Solver:
        from fedvra.problems.pseudo_labels import PseudoLabelSolver

        return PseudoLabelSolver(self, data, settings)

    def parameters(self, seed: int) -> list[Parameter]:
        return self.supervised().parameters(seed)

    def oracle(self, data: FederatedData) -> Oracle:
        from fedvra.problems.pseudo_labels import PseudoLabelOracle

        return PseudoLabelOracle(self, data)

    def to_module(self, x_P: Tensor, aux_K: Tensor | None) -> nn.Module:
        return self.supervised().to_module(x_P, aux_K)


def stratified(samples: Ints, labels: NDArray[Any], share: float, rng: np.random.Generator) -> Ints:
    """A share of the samples (rounded, at least one), each class in proportion up to one sample.

    Systematic sampling: shuffle, put the classes one after the other, and take every (1/share)-th from a random start.

    >>> chosen = stratified(np.arange(100), np.arange(100) % 2, 0.1, np.random.default_rng(0))
    >>> len(chosen), int((chosen % 2).sum())
    (10, 5)
    """
    count = max(1, round(share * len(samples)))
    shuffled = rng.permutation(len(samples))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    places = (np.arange(count) + rng.random()) * (len(samples) / count)
    return samples[ordered[places.astype(np.int64)]]
