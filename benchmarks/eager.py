"""Rounds by autograd beside a plain PyTorch loop that takes the same steps, over the networks of `eager_cases.py`.

    python benchmarks/eager.py --json benchmarks/results/eager.json

For every network three contenders take turns in one process and one thread: the plain loop, the engine on its eager path, and
the engine on the path that it chooses. FedAvg, batches of 20, ten local steps for each of a round's four clients. What is
compared is processor time, which other programs on the machine change less than the clock's; on an idle machine the two are the
same. The plain loop has its data as ready tensors, one model, `torch.optim.SGD` with weight decay, and channels-last memory for
convolutions on colour images, as in `fedvra.bench.bare`; it adds up the models and keeps nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from eager_cases import CASES, Case
from torch import Tensor, nn

import fedvra as fv
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation

CLIENTS, SAMPLES, COHORT, EPOCHS, BATCH = 10, 100, 4, 2, 20
LR, DECAY = 0.01, 1e-3
PATHS = ("eager", "auto")


@dataclass(frozen=True)
class Result:
    """One network: processor seconds of a round, and the plain loop's over the engine's (above 1 the engine is faster)."""

    case: str
    parameters: int
    path: str
    """The one that the engine chooses."""
    plain_seconds: float
    eager_seconds: float
    chosen_seconds: float
    eager_ratio: float
    """The median over the passes."""
    eager_quartiles: tuple[float, float]
    chosen_ratio: float
    chosen_quartiles: tuple[float, float]


class PlainLoop:
    """A round as one writes it by hand."""

    def __init__(self, case: Case, inputs: Tensor, targets: Tensor) -> None:
        self.model, self.loss = case.make(), case.loss
        if inputs.ndim == 4 and inputs.shape[1] > 1 and any(isinstance(m, nn.Conv2d) for m in self.model.modules()):
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        self.parts = list(zip(inputs.split(SAMPLES), targets.split(SAMPLES), strict=True))
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.averaged = [*trained, *(b for b in self.model.buffers() if b.is_floating_point())]
        self.x0 = [t.detach().clone() for t in self.averaged]
        sparse = any(isinstance(m, nn.Embedding) and m.sparse for m in self.model.modules())
        self.optimiser = torch.optim.SGD(
            trained, LR, weight_decay=0 if sparse else DECAY
        )  # not allowed with sparse ones

    def round(self) -> None:
        sums = [torch.zeros_like(x) for x in self.x0]
        for client in torch.randperm(CLIENTS)[:COHORT].tolist():
            with torch.no_grad():
                for t, x in zip(self.averaged, self.x0, strict=True):
                    t.copy_(x)
            inputs, targets = self.parts[client]
            for _ in range(EPOCHS):
                for rows in torch.randperm(SAMPLES).split(BATCH):
                    loss = self.loss(self.model(inputs[rows]), targets[rows])
                    self.optimiser.zero_grad()
                    loss.backward()
                    self.optimiser.step()
            with torch.no_grad():
                for total, t in zip(sums, self.averaged, strict=True):
                    total += t
        self.x0 = [total / COHORT for total in sums]


def federation(case: Case, inputs: Tensor, targets: Tensor, path: str) -> Federation:
    return Federation(
        Experiment(
            algorithm=fv.FedAvg(),
            problem=fv.Supervised(case.make(), loss=case.loss, weight_decay=DECAY, buffers="average"),
            data=fv.split((inputs, targets), fv.IID(), clients=CLIENTS, seed=0),
            sampler=fv.Uniform(COHORT),
            work=fv.Epochs(EPOCHS),
            lr=LR,
            batch_size=BATCH,
            eval_every=0,
            solver=fv.SolverSettings(path=path),
        ),
        workers=1,
    )


def measure(case: Case, passes: int) -> Result:
    torch.manual_seed(0)
    inputs, targets = case.data(CLIENTS * SAMPLES)
    plain = PlainLoop(case, inputs, targets)
    ours = {path: federation(case, inputs, targets, path) for path in PATHS}
    try:
        rounds: list[Callable[[], object]] = [plain.round, *(ours[path].round for path in PATHS)]
        for run in rounds * 2:
            run()
        seconds: list[list[float]] = [[], [], []]
        for turn in range(passes):
            for k in (0, 1, 2) if turn % 2 == 0 else (2, 1, 0):
                begun = time.process_time()
                rounds[k]()
                seconds[k].append(time.process_time() - begun)
        chosen, size = ours["auto"].solver.path.name, ours["auto"].state.x0.numel()
    finally:
        for each in ours.values():
            each.close()
    ratios = [[p / s for p, s in zip(seconds[0], own, strict=True)] for own in seconds[1:]]
    cuts = [quantiles(r, n=4, method="inclusive") for r in ratios]
    return Result(
        case.name,
        size,
        chosen,
        *(median(s) for s in seconds),
        eager_ratio=median(ratios[0]),
        eager_quartiles=(cuts[0][0], cuts[0][2]),
        chosen_ratio=median(ratios[1]),
        chosen_quartiles=(cuts[1][0], cuts[1][2]),
    )


def summary(results: list[Result]) -> dict[str, dict[str, float]]:
    """Over the networks: the middle, the ends, and how many are no slower than the plain loop."""
    found = {}
    for way, ratios in (("eager", [r.eager_ratio for r in results]), ("chosen", [r.chosen_ratio for r in results])):
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        found[way] = {
            "least": min(ratios),
            "lower_quartile": low,
            "median": middle,
            "upper_quartile": high,
            "most": max(ratios),
            "cases": len(ratios),
            "no_slower": sum(r >= 1 for r in ratios),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine's eager path beside a plain loop, over many networks.")
    parser.add_argument("names", nargs="*", help="Networks whose names contain one of these; all without.")
    parser.add_argument("--passes", type=int, default=15, help="How often the contenders take turns.")
    parser.add_argument("--json", type=Path, help="Where to write the results.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("plain loop's time / ours: above 1 is faster\n")
    results = []
    for case in CASES:
        if given.names and not any(name in case.name for name in given.names):
            continue
        r = measure(case, given.passes)
        results.append(r)
        quartiles = f"({r.eager_quartiles[0]:.2f} to {r.eager_quartiles[1]:.2f})"
        print(
            f"{case.name:28} {1000 * r.plain_seconds:7.1f} ms  eager {r.eager_ratio:5.2f} {quartiles:14}"
            f"  {r.path:6} {r.chosen_ratio:5.2f}",
            flush=True,
        )
    if len(results) > 1:
        found = summary(results)
        for way, s in found.items():
            print(
                f"\n{way}: median {s['median']:.2f}, quartiles {s['lower_quartile']:.2f} to {s['upper_quartile']:.2f}, "
                f"from {s['least']:.2f} to {s['most']:.2f}; {s['no_slower']} of {s['cases']} at least as fast as the plain loop"
            )
        if given.json:
            given.json.write_text(
                json.dumps({"summary": found, "cases": [asdict(r) for r in results]}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
