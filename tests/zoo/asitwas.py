"""What a module is, down to its hooks and its plain attributes, so that one can see whether a run left it as it was."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def likeness(module: nn.Module) -> dict[str, Any]:
    """Everything about the module that can be compared with ``==``, by name."""
    seen: dict[str, Any] = {}
    for name, p in module.named_parameters():
        grad = None if p.grad is None else (id(p.grad), _value(p.grad))
        seen[f"parameter {name}"] = (id(p), p.requires_grad, _value(p))
        seen[f"gradient of {name}"] = grad
    for name, b in module.named_buffers():
        seen[f"buffer {name}"] = (id(b), b.requires_grad, _value(b))
    for name, layer in module.named_modules():
        seen[f"training flag of {name!r}"] = layer.training
        if isinstance(layer, torch.jit.ScriptModule):
            continue  # its attributes are not Python's
        for key, value in vars(layer).items():
            if key not in ("_parameters", "_buffers", "_modules", "training"):
                seen[f"attribute {name}.{key}"] = _value(value)
    return seen


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is no longer the same; a value too long to print is left out."""
    return [
        f"{name}: {_short(before.get(name, 'nothing'))} -> {_short(after.get(name, 'nothing'))}"
        for name in {**before, **after}
        if name not in before or name not in after or before[name] != after[name]
    ]


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        whole = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        return (str(value.dtype), tuple(value.shape), whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, Mapping):
        return {repr(key): _value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    if isinstance(value, set):
        return sorted(map(repr, value))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, int | float | str | bool | type(None)):
        return value
    return id(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
