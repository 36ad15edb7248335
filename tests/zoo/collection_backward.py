"""What happens on the way back: activations that are computed again, and hooks that change gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from zoo.cases import Case, mlp, vectors
from zoo.collection_python import Net


class Checkpointed(Net):
    reentrant = False

    def block(self, h: Tensor) -> Tensor:
        return torch.tanh(self.a(h))

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_() if self.reentrant else x
        return self.b(checkpoint(self.block, x, use_reentrant=self.reentrant))


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class CheckpointedSequence(nn.Module):
    """With dropout inside, whose numbers must be drawn again as they were."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(8, 8), nn.GELU(), nn.Dropout(dropout))])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint_sequential(self.layers, 2, x, use_reentrant=False))


def clip(p: Tensor) -> None:
    p.grad.clamp_(-0.01, 0.01)


def hooked(kind: str) -> nn.Module:
    model = mlp()
    weight = model[0].weight
    if kind == "parameter":
        weight.register_hook(lambda g: 5 * g)
    elif kind == "post accumulate":
        weight.register_post_accumulate_grad_hook(clip)
    elif kind == "forward":
        model[0].register_forward_hook(lambda _module, _args, out: out * 1.5)
    elif kind == "forward pre":
        model[2].register_forward_pre_hook(lambda _module, args: (args[0] + 0.3,))
    elif kind == "backward":
        model[2].register_full_backward_hook(lambda _module, grads, _outs: (grads[0] * 3,))
        model[1].register_full_backward_pre_hook(lambda _module, outs: (outs[0] * 0.5,))
    return model


class TensorHook(Net):
    """Gradient reversal by a hook on an activation."""

    def between(self, h: Tensor) -> Tensor:
        h.register_hook(lambda g: -0.5 * g)
        return h


CASES = [
    Case("checkpoint", Checkpointed, vectors),
    Case("checkpoint-reentrant", CheckpointedReentrant, vectors),
    Case("checkpoint-sequential", lambda: CheckpointedSequence(0.0), vectors),
    Case("checkpoint-dropout", lambda: CheckpointedSequence(0.3), vectors),
    Case("hook-parameter", lambda: hooked("parameter"), vectors),
    Case("hook-post-accumulate", lambda: hooked("post accumulate"), vectors),
    Case("hook-forward", lambda: hooked("forward"), vectors),
    Case("hook-forward-pre", lambda: hooked("forward pre"), vectors),
    Case("hook-backward", lambda: hooked("backward"), vectors),
    Case("hook-activation", TensorHook, vectors),
]
