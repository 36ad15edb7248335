"""What a run is on paper: its options, its folder, its records, and what they come to.

    options.py         every option of a run, as the command line and config files give it
    config.py          from layers of options to one config, and from that to an experiment
    option_text.py     options as text; algorithm_text.py: an algorithm's hyper-parameters as text
    variants.py        the algorithms of a comparison as text
    described.py       a run of Python objects as options
    part_text.py       options that name a part of a run
    files.py           the files of a run
    history.py         what a run leaves behind in memory; measures.py: what its records come to
    summary.py         the content of summary.json
    inline.py          what objects show of themselves in a notebook
    drawing.py         a figure that a notebook shows
    cache.py           which runs there are already
    tracker_names.py   which trackers there are

Imports core, clock, compress, state, policies, samplers, data, algorithms, local, problems, engines, tasks.
"""
