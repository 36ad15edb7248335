"""FedVRA from scratch: the whole algorithm in one function, and a small federation to try it on.

Nothing here comes from the fedvra package. Read `fedvra` below beside Algorithm 1 of "Beyond ADMM: A Unified
Client-variance-reduced Adaptive Federated Learning Framework"; the step numbers are the paper's. The rest deals
the 8x8 digits of scikit-learn to clients that each know only a few classes and trains a small network on them:

    python examples/fedvra_from_scratch.py

The same loop is FedProx when a = 0 and d = N/m, federated ADMM when a = d = 1, FedDyn when a = 1 and d = N/m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

Gradient = Callable[[int, Tensor, int, int], Tensor]
"""(client i, model x, round r, local step t) -> g_i(x); r and t let a stochastic gradient choose its batch."""


def fedvra(
    gradient: Gradient,
    x0: Tensor,
    cohorts: Sequence[Sequence[int]],
    steps: Sequence[Sequence[int]],
    omega: Sequence[float],
    *,
    eta: float,
    gamma: float,
    a: float,
    d: float,
) -> Iterator[tuple[Tensor, Tensor, dict[int, Tensor]]]:
    """Minimise sum_i omega_i f_i(x); after each round yield the global model x0, lam, and the lam_i so far.

    cohorts[r] lists the clients of round r, and client i then does steps[r][i] local steps. ``a`` says how
    quickly lam_i follows the fresh gradients of client i; ``d`` makes up for those who stayed away (N/m does so
    exactly, when m of N take part).
    """
    beta = 1 / (gamma * sum(omega))
    lam = torch.zeros_like(x0)  # the server's picture of the global gradient
    lam_i: dict[int, Tensor] = {}  # each client's picture of its own; lam = sum_i omega_i lam_i at all times

    for r, cohort in enumerate(cohorts):
        dual_sum, model_sum = torch.zeros_like(x0), torch.zeros_like(x0)
        for i in cohort:
            mine = lam_i.get(i, torch.zeros_like(x0))
            x = x0.clone()  # step 9: everybody starts from the global model
            for t in range(steps[r][i]):  # steps 10-12: descend the client's augmented Lagrangian
                x = x - eta * (gradient(i, x, r, t) - mine + gamma * (x - x0))
            lam_i[i] = mine + a * gamma * (x0 - x)  # step 14: stays with the client
            upload = gamma * (x - x0)  # step 15: one vector is all that travels
            dual_sum += omega[i] * a * -upload
            model_sum += omega[i] * d * upload
        if cohort:  # when nobody answered, nothing is known that was not known before
            lam = lam + dual_sum  # step 19
            x0 = x0 + beta * model_sum - beta * lam  # step 20
        yield x0, lam, dict(lam_i)


# --- A federation to try it on --------------------------------------------------------------------------------

PIXELS, HIDDEN, CLASSES = 64, 64, 10
SHAPES = [(HIDDEN, PIXELS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]  # as they lie one after another in x


def initial_model(generator: torch.Generator) -> Tensor:
    """All weights and biases as one flat vector, uniform within 1/sqrt(inputs) of zero."""
    bounds = [PIXELS**-0.5, PIXELS**-0.5, HIDDEN**-0.5, HIDDEN**-0.5]
    return torch.cat(
        [
            bound * (2 * torch.rand(shape, generator=generator).flatten() - 1)
            for shape, bound in zip(SHAPES, bounds, strict=True)
        ]
    )


def logits(x: Tensor, images: Tensor) -> Tensor:
    """A network with one hidden layer whose parameters are views into the flat vector x."""
    parts = x.split([int(np.prod(shape)) for shape in SHAPES])
    W1, b1, W2, b2 = (part.view(shape) for part, shape in zip(parts, SHAPES, strict=True))
    return torch.relu(images @ W1.T + b1) @ W2.T + b2


def loss_gradient(x: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(torch.nn.functional.cross_entropy(logits(x, images), labels), x)[0]


def dirichlet_split(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Equal shares: every client has its own class mixture from Dirichlet(alpha) and picks a sample in its turn."""
    piles = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(CLASSES)]
    mixtures = rng.dirichlet(np.full(CLASSES, alpha), clients)
    hands: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(len(labels) // clients):
        for i in rng.permutation(clients):
            stock = np.array([len(pile) for pile in piles])
            wish = mixtures[i] * (stock > 0)
            wish = wish if wish.sum() > 0 else stock  # favourites gone: take what is left
            hands[i].append(piles[rng.choice(CLASSES, p=wish / wish.sum())].pop())
    return [np.array(hand) for hand in hands]


def main(clients: int = 20, per_round: int = 4, rounds: int = 40, epochs: int = 2, batch: int = 12) -> float:
    """Train, print the test accuracy of x0 after every round, and return the last one."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    pixels, digits = load_digits(return_X_y=True)
    order = rng.permutation(len(digits))
    images = torch.tensor(pixels[order] / 16, dtype=torch.float32)
    labels = torch.tensor(digits[order])
    train, test = slice(0, 1440), slice(1440, None)
    shares = dirichlet_split(labels[train].numpy(), clients, 0.2, rng)
    share = len(shares[0])
    per_epoch = -(-share // batch)

    # Who takes part and which batches they see is settled beforehand, so that a run depends on the seed alone.
    cohorts = [sorted(int(i) for i in rng.choice(clients, per_round, replace=False)) for _ in range(rounds)]
    shuffles = rng.permuted(np.tile(np.arange(share), (rounds, clients, epochs, 1)), axis=-1)

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        epoch, position = divmod(t, per_epoch)
        chosen = shares[i][shuffles[r, i, epoch, position * batch : (position + 1) * batch]]
        return loss_gradient(x, images[chosen], labels[chosen])

    accuracy = 0.0
    learning = fedvra(
        gradient,
        initial_model(torch.Generator().manual_seed(0)),
        cohorts,
        steps=[[epochs * per_epoch] * clients] * rounds,
        omega=[1 / clients] * clients,
        eta=0.1,
        gamma=0.1,
        a=3.0,
        d=clients / per_round,
    )
    for r, (x0, _, _) in enumerate(learning, start=1):
        accuracy = (logits(x0, images[test]).argmax(dim=1) == labels[test]).float().mean().item()
        print(f"round {r:3d}   test accuracy {accuracy:6.1%}")
    return accuracy


if __name__ == "__main__":
    torch.set_num_threads(1)  # the network is so small that threads would only wait for each other
    main()
