"""A run as a value: every option of ``fedvra run``, resolved, checked, and readable from and writable to YAML.

The fields of :class:`RunConfig` are the one list of options: the command line, config files and their checks follow it. A run's
``config.yaml`` holds everything, so it is itself a config file. Longer than other files: it is one list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from fedvra import __version__
from fedvra.core.errors import require
from fedvra.runs import option_text, part_text
from fedvra.runs.option_field import option, words


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Make one with :func:`~fedvra.runs.config.configure`, which fills in what is not given.

    >>> from fedvra.runs.config import configure
    >>> configure({"task": "digits", "rounds": 20}).clients
    50
    """

    task: str = option(None, option_text.text, "TASK", "What to learn: digits, mnist, ..., or your own, mine.py:task.")
    algorithm: str = option("fedvra", option_text.text, "NAME", "The algorithm; `fedvra algorithms` lists them.")
    set: Mapping[str, Any] = option(
        (), option_text.assignments, "NAME=VALUE", "A hyper-parameter of the algorithm.", several=True
    )
    rounds: int = option(100, option_text.whole(0), "N", "Rounds of communication.")
    clients: int = option(100, option_text.whole(1), "N", "Number of clients.")
    cohort: int = option(10, option_text.whole(1), "N", "Clients that take part in a round.")
    sampler: str = option(
        "uniform",
        option_text.text,
        "NAME",
        "Who takes part: uniform, full, bernoulli:0.1, power-of-choice:20, cyclic, ...",
    )
    split: str = option(
        "dirichlet:0.2",
        option_text.text,
        "NAME",
        "Partition of the data: dirichlet:0.2, iid, shards:2, quantity:power=1.5, ...",
    )
    epochs: int | str | None = option(
        2,
        option_text.optional(option_text.epochs),
        "N",
        "Passes over its data a client makes in a round; 1-5 draws from a range.",
    )
    steps: int | None = option(
        None, option_text.optional(option_text.whole(1)), "N", "Local steps in a round, instead of epochs."
    )
    batch_size: int | None = option(
        50,
        option_text.or_word("full", option_text.whole(1), stands_for=None),
        "N",
        "Samples per step; full takes them all.",
    )
    drop_last: bool = option(
        False, option_text.truth, "", "Leave out an epoch's last, smaller batch (never a client's only one)."
    )
    lr: float | str = option(
        0.01, option_text.stepsize, "RATE", "Local stepsize eta; 0.1:0.01@200 is 0.1, and 0.01 from round 200 on."
    )
    lr_decay: float = option(1.0, option_text.factor, "FACTOR", "Multiply the stepsize by this after each round.")
    lr_warmup: int = option(0, option_text.whole(0), "N", "Let the stepsize rise to its full length over N rounds.")
    lr_cosine: int | None = option(
        None,
        option_text.optional(option_text.whole(1)),
        "N",
        "Let the stepsize fall along half a cosine, to 0 after N rounds.",
    )
    local: str = option(
        "sgd",
        part_text.local,
        "NAME",
        "Local optimiser: sgd, sgd:momentum=0.9,clip=10, adam, adamw; its state is reset in each round.",
    )
    weight_decay: float = option(
        1e-3, option_text.non_negative, "RATE", "L2 penalty: this times x is added to every gradient."
    )
    weights: str | tuple[float, ...] = option(
        "equal", option_text.weights, "NAME", "Weight of each client: equal, samples, or numbers separated by commas."
    )
    model: str = option("mlp", option_text.text, "NAME", "mlp, cnn, cnn-feddyn, linear, ...")
    normalize: str = option(
        "dataset",
        option_text.normalization,
        "HOW",
        "Normalisation of pixels in [0, 1] as (x - MEAN)/STD: by the usual numbers of the data set (dataset), each image's "
        "own (sample), or given ones, e.g. 0.5/0.25.",
    )
    seed: int = option(
        0, option_text.whole(0), "N", "The same seed gives the same numbers, whatever the number of workers."
    )
    drop: float = option(
        0.0, option_text.probability_of_loss, "P", "Probability that a reply is lost after the work was done."
    )
    refuse: str | None = option(
        None,
        option_text.optional(option_text.text),
        "RULE",
        "Do not count uploads that stand out: median-norm:3, multi-krum:2.",
    )
    compress: str | None = option(
        None,
        option_text.optional(part_text.compressor),
        "HOW",
        "Compress uploads: quantize:4, topk:0.1, topk:0.1+quantize:4, bfloat16, ...",
    )
    compress_down: str | None = option(
        None,
        option_text.optional(part_text.compressor),
        "HOW",
        "Compress the model sent to clients: bfloat16 or int8.",
    )
    privacy: str | None = option(
        None,
        option_text.optional(part_text.privacy),
        "HOW",
        "Differential privacy for every record: record:clip=1,noise=2,max_epsilon=8; `fedvra privacy` says what it comes to.",
    )
    system: Mapping[str, Any] | None = option(
        None,
        option_text.optional(option_text.system),
        "FILE",
        "Devices and networks (YAML: step, up, down, latency, deadline, available): rounds then take simulated time.",
    )
    eval_every: int = option(1, option_text.whole(0), "N", "Test the global model every so many rounds; 0 never.")
    deploy: str | None = option(
        None,
        option_text.optional(part_text.deploy),
        "MODEL",
        "The model one would deploy, by which targets go: x0, mean (of the clients' models) or ema:0.9 (running mean of x0) "
        "[default: what suits the algorithm].",
    )
    validation: float = option(
        0.0, option_text.share, "SHARE", "Share of every client's samples held out for early stopping and tune."
    )
    test_share: float = option(
        0.0, option_text.share, "SHARE", "Share of every client's samples held out to test on that client."
    )
    unseen: int = option(0, option_text.whole(0), "N", "Further clients that never train and are tested as newcomers.")
    client_results: int = option(
        0,
        option_text.whole(0),
        "K",
        "Every K rounds test the global model on each client's own data (see --test-share, --unseen). 0 never.",
        decides=False,
    )
    tune_steps: int = option(
        0,
        option_text.whole(0),
        "N",
        "With --client-results: test again after N local steps of each client (personalisation).",
        decides=False,
    )
    train_losses: bool = option(
        False, option_text.truth, "", "Record the training loss of each client that takes part.", decides=False
    )
    diagnostics: int = option(
        0,
        option_text.whole(0),
        "K",
        "Every K rounds record how duals track gradients, how much client variance they remove, and more; costs a "
        "pass over the data of up to 100 clients each time. 0 never.",
        decides=False,
    )
    targets: tuple[float | str, ...] = option(
        (90, 95, 97, 98),
        option_text.targets,
        "LIST",
        "Accuracies (%) or figures such as f1=0.8 whose first round is reported.",
        decides=False,
    )
    until: float | str | None = option(
        None,
        option_text.optional(option_text.target),
        "TARGET",
        "Stop in the first round that reaches it: an accuracy (%), or a figure of the records such as f1=0.8.",
    )
    patience: int | None = option(
        None,
        option_text.optional(option_text.whole(1)),
        "N",
        "Stop when accuracy has not improved for N rounds.",
    )
    precision: str = option(
        "float32", option_text.one_of("float32", "bfloat16"), "NAME", "Arithmetic inside a step: float32 or bfloat16."
    )
    device: str = option(
        "cpu", option_text.text, "NAME", "Where local steps are computed: cpu, or cuda for blocks of clients on a GPU."
    )
    workers: int | str = option(
        "auto",
        option_text.or_word("auto", option_text.whole(1)),
        "N",
        "Worker processes; auto is one per core.",
        decides=False,
    )
    engine: str = option(
        "local",
        option_text.one_of("local", "ray"),
        "NAME",
        "Where clients are run: local, on this machine; ray, on a Ray cluster.",
        decides=False,
    )
    address: str | None = option(
        None,
        option_text.optional(option_text.text),
        "ADDRESS",
        "Address of the Ray cluster: auto or HOST:PORT [default: $RAY_ADDRESS, else a new Ray on this machine].",
        decides=False,
    )
    gpus_per_worker: float = option(
        0.0, option_text.non_negative, "N", "GPUs, or a fraction of one, per Ray worker.", decides=False
    )
    checkpoint_every: int = option(
        50,
        option_text.whole(0),
        "N",
        "Rounds between checkpoints; 0: only at the end and on Ctrl-C.",
        decides=False,
    )
    state_memory: int | str = option(
        "auto",
        option_text.or_word("auto", option_text.size),
        "SIZE",
        "Client state to keep in memory, e.g. 4GB; the rest is on disk. auto is half of what the machine has free.",
        decides=False,
    )
    state_dtype: str = option(
        "float32",
        option_text.one_of("float32", "bfloat16"),
        "NAME",
        "Client state in float32 (as the model), or in bfloat16: half the size, with its drift reported.",
    )
    state_folder: str | None = option(
        None,
        option_text.optional(option_text.text),
        "DIR",
        "Where client state is kept on disk [default: the run's folder].",
        decides=False,
    )
    data: str | None = option(
        None,
        option_text.optional(option_text.text),
        "DIR",
        "Folder of data sets [default: $FEDVRA_DATA].",
        decides=False,
    )
    track: tuple[str, ...] | None = option(
        None,
        option_text.optional(option_text.trackers),
        "NAME",
        "Also log to a tracker: tensorboard, wandb (offline), mlflow.",
        decides=False,
        several=True,
    )

    python: tuple[str, ...] | None = option(
        None,
        option_text.optional(words),
        "LIST",
        "Options that stand for objects of the Python that made the run: described, and not to be built from.",
        decides=False,
        typed=False,
    )
    fingerprint: str | None = option(
        None, option_text.optional(option_text.text), "HASH", "Of model and data that came as objects.", typed=False
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name not in (self.python or ()):
                value = field.metadata["read"](field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
        require(
            (self.epochs is None) != (self.steps is None),
            "local work is counted in epochs or in steps: give one of the two.",
        )
        require(
            self.engine == "ray" or not (self.address or self.gpus_per_worker),
            "address and gpus_per_worker are for workers on a Ray cluster: say engine ray (--engine ray), or leave them out.",
        )
        require(
            self.lr_cosine is None or self.rounds <= self.lr_cosine,
            f"the stepsize falls to 0 after {self.lr_cosine} rounds (lr_cosine) and the run has {self.rounds}: run fewer, "
            "or make it longer.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the order of the fields, as a config file holds them."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["set"] = {name: _written(name, value) for name, value in self.set.items()}
        plain.update({name: list(value) for name, value in plain.items() if isinstance(value, tuple)})
        plain["batch_size"] = "full" if self.batch_size is None else self.batch_size
        unsaid = "steps" if self.steps is None else "epochs"
        return {name: value for name, value in plain.items() if name != unsaid and value is not None}

    def flat(self, deciding: bool = False) -> dict[str, Any]:
        """Every option by name, hyper-parameters as ``set.gamma``; perhaps only those that decide a run's numbers.

        >>> from fedvra.runs.config import configure
        >>> configure({"task": "digits", "algorithm": "feddyn"}).flat()["set.alpha"]
        0.1
        """
        plain = {
            name: value for name, value in self.to_dict().items() if OPTIONS[name].metadata["decides"] or not deciding
        }
        settings = plain.pop("set")
        return {**plain, **{f"set.{name}": value for name, value in settings.items()}}

    def to_yaml(self) -> str:
        again = "the same call in Python" if self.python else "fedvra run --config THIS-FILE"
        head = f"# fedvra {__version__}; to run it again: {again}\n"
        return head + yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=100)


OPTIONS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(RunConfig)}
GROUPS = {
    "Federation": ("clients", "cohort", "sampler", "rounds", "weights", "drop", "refuse", "system", "seed"),
    "Messages": ("compress", "compress_down"),
    "Privacy": ("privacy",),
    "Local training": (
        *("algorithm", "set", "epochs", "steps", "batch_size", "drop_last", "local"),
        *("lr", "lr_decay", "lr_warmup", "lr_cosine", "weight_decay"),
    ),
    "Data and model": ("split", "validation", "test_share", "unseen", "normalize", "model", "data"),
    "Evaluation": (
        *("eval_every", "deploy", "targets", "until", "patience"),
        *("client_results", "tune_steps", "train_losses", "diagnostics"),
    ),
    "Speed and memory": (
        *("workers", "engine", "address", "gpus_per_worker", "device", "precision"),
        *("state_memory", "state_dtype", "state_folder"),
    ),
    "Output": ("checkpoint_every", "track"),
}
"""Under which headings a help page shows them; what has none is among the options of the command itself."""


def _written(name: str, value: Any) -> Any:
    from fedvra.runs.algorithm_text import written

    return written(name, value)
