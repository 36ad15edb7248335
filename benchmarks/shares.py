"""Which kernels a round of a workload spends its time in: their shares, by torch's profiler, in one process of one thread.

python benchmarks/shares.py w2
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace

import torch

from fedvra.bench.workloads import ALGORITHMS, WORKLOADS
from fedvra.engines.federation import Federation


def shares(name: str, clients: int = 2) -> dict[str, float]:
    """By kernel, of the second round of FedVRA over a few clients with one epoch each; the largest first."""
    workload = replace(WORKLOADS[name], clients=clients, cohort=clients, epochs=1)
    experiment = workload.experiment(ALGORITHMS["fedvra"](), workload.data())
    with closing(Federation(experiment, workers=1)) as federation:
        federation.round()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            federation.round()
    seconds = {kernel.key: kernel.self_cpu_time_total for kernel in profile.key_averages()}
    whole = sum(seconds.values())
    return {key: part / whole for key, part in sorted(seconds.items(), key=lambda item: -item[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    for kernel, share in shares(parser.parse_args().workload).items():
        if share > 0.004:
            print(f"{share:6.1%}  {kernel}")


if __name__ == "__main__":
    main()
