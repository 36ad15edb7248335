"""Models of timm, where it is installed.

It is no dependency of the tests: it asks for torchvision, of which there is no build for a torch without CUDA. The models
need nothing of it, so empty modules stand in for it while timm is imported.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from zoo.cases import Case, images

PARTS = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".models", ".models.feature_extraction")


class StandIn(types.ModuleType):
    """A module that has whatever is asked of it."""

    __path__: list[str] = []  # noqa: RUF012 - what makes it a package

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        modes = {mode.upper(): mode for mode in ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")}
        return type(name, (nn.Module,), modes)


@contextmanager
def stood_in() -> Iterator[None]:
    """torchvision by name only, and gone afterwards: other libraries must not take it for the real one."""
    names = [f"torchvision{part}" for part in (*PARTS, ".datasets", ".utils")]
    for name in names:
        module = StandIn(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, module)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def load() -> types.ModuleType:
    if "timm" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        with stood_in():
            return importlib.import_module("timm")
    return importlib.import_module("timm")


def resnet(**options: object) -> nn.Module:
    resnets = load().models.resnet
    sizes = {"layers": (1, 1, 1, 1), "channels": (4, 4, 8, 8), "stem_width": 4, "num_classes": 3}
    return resnets.ResNet(resnets.BasicBlock, **sizes, **options)


def vit(checkpointing: bool = False, **options: object) -> nn.Module:
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = load().models.VisionTransformer(**sizes, **options)
    model.set_grad_checkpointing(checkpointing)
    return model


def convnext(**options: object) -> nn.Module:
    return load().models.ConvNeXt(
        depths=(1, 1, 1, 1), dims=(4, 4, 8, 8), patch_size=1, ls_init_value=0.5, num_classes=3, **options
    )


def mixer() -> nn.Module:
    return load().models.MlpMixer(num_classes=3, img_size=8, patch_size=4, num_blocks=2, embed_dim=8)


def swin() -> nn.Module:
    return load().models.SwinTransformer(
        img_size=8, patch_size=2, embed_dim=4, depths=(2,), num_heads=(2,), window_size=2, num_classes=3
    )


CASES = [
    Case(
        "timm-resnet-batchnorm", resnet, images, buffers="average", tolerance=1e-6, single=0
    ),  # one pixel is left at the end
    Case("timm-vit", vit, images),
    Case("timm-vit-checkpointing", lambda: vit(True), images),
    Case("timm-vit-layer-scale-drop-path", lambda: vit(init_values=0.7, drop_path_rate=0.3), images),
    Case("timm-convnext", convnext, images),
    Case("timm-mixer", mixer, images),
    Case("timm-swin", swin, images),
]
if importlib.util.find_spec("timm") is None:
    CASES = []
