"""What follows a run from start to end: it may add to the record, and may stop the run.

    base.py           what a callback is (``Callback``), and the run it looks at (``Run``)
    following.py      how a run tells its callbacks, in which order
    function.py       a plain function of the record, as given to ``progress=``
    observer.py       looks into the simulator before and after a round; stationarity.py, diagnostics.py: two of them
    client_results.py what single clients see
    stopping.py       ends a run at a target, or when it no longer improves
    records.py        the lines of metrics.jsonl and the summary; checkpoints.py: the state to resume from
    display.py        what a person sees in the terminal
    trackers/         TensorBoard, W&B, MLflow

Imports core, samplers, data, local, problems, engines, theory, runs, show.
"""
