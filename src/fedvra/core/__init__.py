"""The rule itself and what everything else speaks in.

    rule.py        the update equations, and the only place where they are
    coefficients.py  what an algorithm says of a round: its row of the table
    cohort.py      who takes part in a round: clients, p, Q, eta, omega
    members.py     who belongs to a federation, over client numbers that never change
    streams.py     random numbers, keyed by seed, purpose, round and client
    registry.py    how algorithms, samplers, data sets, models and tasks are found by name
    validation.py  checks of what a user gives
    calls.py       objects as the command line writes them: name:value,key=value
    optimisers.py  which optimiser takes local steps, and how much work they amount to
    schedule.py    stepsizes that change
    compressor.py  what is sent in place of a vector; bits.py packs it
    record_dp.py   record-level differential privacy as a value, and where its draws come from
    whole.py       numbers in whole units, for sums that are exact
    block.py       what a block of clients is given, and what its clients keep
    moves.py       what a block's local steps came to, as it is sent
    step.py        client_round and server_round: where the equations are put together
    adaptive.py    what an algorithm that adapts carries from round to round
    deploy.py      which model a run is for
    objects.py     values: equal by what they hold, copied and pickled as such
    errors.py      the errors a user sees
    files.py       files that are there whole or not at all
    threads.py     how many threads torch may use
    accelerators.py  GPUs beside work on the CPU
    torch_private.py  every name of torch that is not public

Imports nothing of the library.
"""
