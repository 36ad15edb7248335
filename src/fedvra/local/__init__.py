"""How a client takes its steps on a model: its batches, and three paths that agree up to rounding.

    protocol.py        what local work is: Block, Private, Solver
    solver.py          the solver for any ``nn.Module``: paths eager, traced, block
    subject.py         the user's own module, lent to a solver and pointed at flat vectors
    looking.py         what training changes in it; python_state.py: what it changes outside of tensors
    one_client.py      one client's steps, replayed or by autograd
    per_record.py      private steps: the gradient of every record by itself, clipped and noised
    stepping.py        momentum, clipping, Adam: optimisers on flat vectors
    held_values.py     what an object holds, to be compared
    client_batches.py  a client's batches in order
    programs.py        the recorded steps a solver keeps; replay/ records, replays and checks them
    blocks.py          several clients at once
    check_schedule.py  when a recorded step is compared with autograd again
    measuring.py       losses and accuracy on test data
    randomness.py      the generators of torch, numpy and Python, seeded per client
    flat.py            a module's tensors as one vector

Imports core, data.
"""
