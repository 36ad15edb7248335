"""Who computes: a federation on this machine, in this process or in a pool of worker processes.

    experiment.py   what a run is made of, and each round's plan
    federation.py   the loop of rounds
    cohort_work.py  a cohort cut into parts for the workers, and their sums
    worker.py       what a worker does with its part of a cohort; singles.py: where each upload is looked at
    evaluation.py   the global model on test and validation data, and on the clients' own
    pool.py         the worker processes
    fingerprint.py  by what a run knows its model, loss and data again
    checkpoint.py   all that a run needs to resume

Imports core, clock, state, policies, samplers, data, algorithms, local, problems.
"""
