"""Runs made: one, several beside each other, many in search of the best.

    simulation.py  ``fv.simulate``: a run from objects
    execution.py   a run from options, in a folder: start, resume, stop
    comparing.py   several algorithms over several seeds
    tuning.py      successive halving over hyper-parameters
    stopping.py    what a signal does to a run

Imports core, clock, state, policies, samplers, data, algorithms, local, problems, engines, runs, show, callbacks.
"""
