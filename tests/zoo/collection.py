"""All cases of the zoo."""

from __future__ import annotations

from zoo import (
    collection_backward,
    collection_corners,
    collection_identity,
    collection_libraries,
    collection_losses,
    collection_ops,
    collection_parameters,
    collection_python,
    collection_sequences,
    collection_state,
    collection_tasks,
    collection_timm,
    collection_vision,
)
from zoo.cases import Case

CASES: list[Case] = [
    *collection_vision.CASES,
    *collection_sequences.CASES,
    *collection_parameters.CASES,
    *collection_python.CASES,
    *collection_backward.CASES,
    *collection_losses.CASES,
    *collection_ops.CASES,
    *collection_tasks.CASES,
    *collection_corners.CASES,
    *collection_identity.CASES,
    *collection_state.CASES,
    *collection_libraries.CASES,
    *collection_timm.CASES,
]
