"""Who computes: a federation in this process, in a pool of worker processes, or on a Ray cluster.

    experiment.py   what a run is made of, and each round's plan
    federation.py   the loop of rounds
    budgets.py      who can afford the round, where there is privacy
    cohort_work.py  a cohort cut into parts for the workers, and their sums
    worker.py       what a worker does with its part of a cohort; singles.py: where each upload is looked at
    evaluation.py   the global model on test and validation data, and on the clients' own
    pool.py         the worker processes
    ray_engine.py   fv.Ray; ray_crew.py, ray_pool.py, ray_rows.py: a cluster's workers as the server sees them
    ray_worker.py   one of them
    parcel.py       what is sent to them; recovery.py: rows that died with one are brought back
    fingerprint.py  by what a run knows its model, loss and data again
    checkpoint.py   all that a run needs to resume

Imports core, clock, privacy, state, policies, samplers, data, algorithms, local, problems.
"""
