"""A problem and its data as bytes for other machines: functions by value, large tables apart so that a node holds them once."""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from torch import Tensor

from fedvra.core.errors import UsageError
from fedvra.core.objects import Value

LARGE = 1 << 20
"""Bytes from which on a table goes apart."""


@dataclass(frozen=True)
class Parcel:
    """Ray keeps ``tables`` in a node's shared memory, where all workers of the node read them."""

    content: bytes
    tables: list[NDArray[Any]]

    @classmethod
    def of(cls, value: Any, apart: bool = False) -> Parcel:
        """Pack a value; its large tables are to be ``apart`` only where nobody writes to them."""
        file = io.BytesIO()
        packer = _Packer(file, apart)
        try:
            packer.dump(value)
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"Ray's workers cannot be sent the problem or its data ({reason}): "
                "leave such an object out, or have it made where it is used."
            ) from error
        return cls(file.getvalue(), packer.tables)

    def open(self) -> Any:
        """What was packed. Tables that went apart are read-only."""
        return _Unpacker(io.BytesIO(self.content), self.tables).load()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, apart: bool) -> None:
        super().__init__(file, protocol=5)
        self.apart, self.tables = apart, list[NDArray[Any]]()

    def persistent_id(self, thing: Any) -> Any:
        if not self.apart or type(thing) not in (Tensor, np.ndarray):
            return None
        if isinstance(thing, Tensor):
            plain = thing.device.type == "cpu" and thing.is_contiguous() and not thing.requires_grad
            if not plain or thing.nbytes < LARGE or thing.layout != torch.strided:
                return None
            self.tables.append(as_array(thing))
            return "tensor", len(self.tables) - 1, thing.dtype, tuple(thing.shape)
        if thing.nbytes < LARGE or thing.dtype.hasobject:
            return None
        self.tables.append(thing)
        return "array", len(self.tables) - 1, None, None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Value):  # which refuses what plain pickle cannot do, such as lambdas
            return object.__reduce_ex__(thing, 5)
        return super().reducer_override(thing)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tables: list[NDArray[Any]]) -> None:
        super().__init__(file)
        self.tables = tables

    def persistent_load(self, key: Any) -> Any:
        kind, k, dtype, shape = key
        return as_tensor(self.tables[k], dtype).view(shape) if kind == "tensor" else self.tables[k]


def as_array(values: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor of any dtype, not copied."""
    return values.reshape(-1).view(torch.uint8).numpy()


def as_tensor(data: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """The flat tensor of these bytes, not copied and not to be written to."""
    if not data.size:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(data.view(np.uint8)).view(dtype)
