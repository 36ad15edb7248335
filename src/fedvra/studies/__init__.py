"""Runs made: one, several beside each other, many in search of the best.

    simulation.py  ``fv.simulate``: a run from objects
    execution.py   a run from options, in a folder: start, resume, stop
    comparing.py   several algorithms over several seeds
    tuning.py      successive halving over hyper-parameters
    objects.py     ``fv.compare``, ``fv.tune``: the same for one's own model and data
    parallel.py    several runs at a time; progress.py: how far they are
    halving.py     which settings are continued
    stopping.py    what a signal does to a run

Imports core, clock, compress, state, policies, samplers, data, algorithms, local, problems, engines, runs, show, callbacks.
"""
