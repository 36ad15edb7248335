"""Tasks beyond classification: generators, flows, metric learning, networks that make or adapt the weights of others."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from zoo.cases import Case, Loss, images, mlp, sequences, vectors
from zoo.collection_parameters import itself
from zoo.collection_python import Net


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(2, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + (logvar / 2).exp() * torch.randn_like(mean)), mean, logvar


def evidence(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    decoded, mean, logvar = out
    return F.mse_loss(decoded, y) - 0.05 * (1 + logvar - mean**2 - logvar.exp()).sum(1).mean()


class Diffusion(nn.Module):
    """Steps and noise are drawn in the forward pass; the schedule is a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.time = nn.Linear(8, 8), nn.Embedding(5, 8)
        self.register_buffer("signal", torch.linspace(0.99, 0.3, 5))

    def forward(self, x: Tensor) -> Tensor:
        t = torch.randint(0, 5, (len(x),))
        noise = torch.randn_like(x)
        level = self.signal[t][:, None]
        return self.body(level.sqrt() * x + (1 - level).sqrt() * noise + self.time(t)) - noise


class Flow(Net):
    """A density, with a determinant and a triangular solve."""

    def setup(self) -> None:
        self.matrix = nn.Parameter(torch.eye(8) + 0.1 * torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(self.matrix.tril() + torch.eye(8, dtype=x.dtype), x.t(), upper=False).t()
        return (super().forward(z) ** 2).sum(1) - torch.linalg.slogdet(self.matrix)[1]


class Cholesky(Net):
    def between(self, h: Tensor) -> Tensor:
        gram = self.a.weight.t() @ self.a.weight + torch.eye(8, dtype=h.dtype)
        factor = torch.linalg.cholesky(gram)
        return h + torch.linalg.matrix_exp(0.1 * factor).sum() * 0.01


class Equilibrium(Net):
    """Iterated until it no longer moves: how often follows from the data."""

    def setup(self) -> None:
        self.inner = nn.Linear(10, 10)

    def between(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        while True:
            after = torch.tanh(0.5 * self.inner(z) + h)
            if (after - z).abs().max().item() < 1e-2:
                return after
            z = after


class Hyper(nn.Module):
    """A network that makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.maker, self.made = nn.Parameter(torch.randn(4)), nn.Linear(4, 27), nn.Linear(8, 3)
        self.made.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.maker(self.code).split([24, 3])
        return functional_call(self.made, {"weight": weight.view(3, 8), "bias": bias}, (x,))


class Adapting(nn.Module):
    """MAML: a gradient step on half of the batch inside the forward pass on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(self.net.named_parameters())

        def inner(candidate: dict[str, Tensor]) -> Tensor:
            return functional_call(self.net, candidate, (x[::2],)).pow(2).mean()

        slopes = torch.func.grad(inner)(weights)
        return functional_call(self.net, {n: w - 0.1 * slopes[n] for n, w in weights.items()}, (x,))


class Spatial(nn.Module):
    """A spatial transformer: images are sampled along a learnt grid."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.head = nn.Linear(192, 6), nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        theta = 0.1 * self.where(x.flatten(1)).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False).flatten(1))


class Unpooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.unpool = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.MaxPool2d(2, return_indices=True),
            nn.MaxUnpool2d(2),
        )
        self.shuffle, self.head = nn.PixelShuffle(2), nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        pooled, places = self.pool(self.conv(x))
        return self.head(self.shuffle(self.unpool(pooled, places)).flatten(1))


class Unfolded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.head = nn.Parameter(torch.randn(4, 27) / 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.kernel @ F.unfold(x, 3)).relu().mean(2))


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.form, self.prototypes = nn.Bilinear(4, 4, 6), nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.form(x[:, :4], x[:, 4:]), self.prototypes)


def triplet(out: Tensor, _: Tensor) -> Tensor:
    return F.triplet_margin_loss(out, out.roll(1, 0).detach(), out.roll(-1, 0), margin=2.0)


class Spelling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0]).log_softmax(2).transpose(0, 1)


def spellings(n: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    inputs, _ = sequences(n)
    letters = torch.arange(2 * n).view(n, 2) % 3 + 1
    return inputs, (letters, torch.arange(n) % 2 + 1)


def connectionist(out: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
    letters, lengths = y
    return F.ctc_loss(out, letters, torch.full_like(lengths, len(out)), lengths, zero_infinity=True)


def gradient_penalty(module: nn.Module) -> Loss:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        x = torch.rand(2, 8, dtype=out.dtype).requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        return F.cross_entropy(out, y) + (slope.norm(dim=1) - 1).pow(2).mean()

    return loss


class Gumbel(Net):
    def between(self, h: Tensor) -> Tensor:
        return F.gumbel_softmax(h, tau=0.8, hard=True) + h


class DroppedAttention(Net):
    def between(self, h: Tensor) -> Tensor:
        heads = h.view(len(h), 1, 5, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3 if self.training else 0.0).flatten(1)


def random_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 10), nn.RReLU(), nn.AlphaDropout(0.2), nn.Linear(10, 3))


CASES = [
    Case("vae", VAE, itself, evidence),
    Case("diffusion", Diffusion, itself, lambda out, _: out.pow(2).mean()),
    Case("flow", Flow, itself, lambda out, _: out.mean()),
    Case("cholesky", Cholesky, vectors),
    Case("equilibrium", Equilibrium, vectors, eager=True, single=0),
    Case("hypernetwork", Hyper, vectors),
    Case("maml", Adapting, vectors),
    Case("spatial-transformer", Spatial, images),
    Case("unpooling", Unpooled, images),
    Case("unfold", Unfolded, images),
    Case("bilinear-prototypes", Bilinear, vectors),
    Case("triplet", lambda: nn.Linear(8, 4), vectors, triplet),
    Case("ctc", Spelling, spellings, connectionist),
    Case("gradient-penalty", mlp, vectors, loss_of=gradient_penalty),
    Case("gumbel", Gumbel, vectors),
    Case("attention-dropout", DroppedAttention, vectors),
    Case("random-layers", random_layers, vectors),
]
