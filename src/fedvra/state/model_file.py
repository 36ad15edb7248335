"""What was learned as a file: a module's ``state_dict`` under its own names, as safetensors, which holds no code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedvra.core.errors import UsageError, require
from fedvra.core.files import replace_durably

ENDING = ".safetensors"


def save_model(model: torch.nn.Module | Mapping[str, torch.Tensor], path: str | Path) -> Path:
    """Write a model, or a ``state_dict``, to a safetensors file; readers see the old file or the whole new one, never a part.

    >>> import tempfile
    >>> save_model(torch.nn.Linear(2, 1), Path(tempfile.mkdtemp()) / "model.safetensors").name
    'model.safetensors'
    """
    path = Path(path)
    held = model.state_dict() if isinstance(model, torch.nn.Module) else model
    require(
        isinstance(held, Mapping) and all(isinstance(each, torch.Tensor) for each in held.values()),
        f"what is saved is an nn.Module or its state_dict, got {type(model).__name__}.",
    )
    require(path.suffix == ENDING, f"models are saved as safetensors: name a file that ends in {ENDING}, got {path}.")
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, save(tensors, {"format": "pt"}))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another file.") from None
    return path


def load_model(path: str | Path, model: torch.nn.Module | Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """The model with the weights of a file that ``history.save`` or ``fv.save_model`` wrote.

    Args:
        path: the file.
        model: the module to put the weights into, or a function that makes one, as for ``fv.Supervised``.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> trained = torch.nn.Linear(2, 1)
    >>> _ = save_model(trained, file)
    >>> bool((load_model(file, torch.nn.Linear(2, 1)).weight == trained.weight).all())
    True
    """
    path = Path(path)
    try:
        found = load(path.read_bytes())
    except OSError as error:
        raise UsageError(f"the model {path} cannot be read ({error.strerror}).") from None
    except SafetensorError as error:
        raise UsageError(f"{path} is no file of safetensors ({error}).") from None
    module = model if isinstance(model, torch.nn.Module) else model()
    require(
        isinstance(module, torch.nn.Module),
        f"model must be an nn.Module or a function that makes one, got {type(module).__name__}.",
    )
    _require_same(path, module.state_dict(), found)
    module.load_state_dict(found)
    return module


def _require_same(path: Path, wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    """Say in a sentence what ``load_state_dict`` would say in twenty lines."""
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    parts = [
        f"it lacks {_some(missing)}" if missing else "",
        f"it has {_some(unknown)}, which the model has not" if unknown else "",
    ]
    for name in wanted:
        if name in found and wanted[name].shape != found[name].shape:
            parts.append(f"its {name} is of shape {list(found[name].shape)}, not {list(wanted[name].shape)}")
    said = [part for part in parts if part]
    require(not said, f"{path} holds another model: {'; '.join(said[:3])}.")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
