"""A server that audits from some round on, notes down what happened, and dies before or after a checkpoint where told to."""

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from faulty.problem import CLIENTS, algorithm, settings
from fedvra.flower import MaskedSum, Strategy

app = ServerApp()


class Mortal(Strategy):
    """Kills its process at the end of a round, "before:3" or "after:3" the checkpoint, and leaves a file ``died`` behind."""

    die = ""
    first: int | None = None
    """Rounds played before this server came to life."""

    def save(self) -> None:
        end_of_round = self.first is not None and self.books.round > self.first
        if end_of_round and self.die == f"before:{self.books.round}":
            self.fall_over()
        super().save()
        if end_of_round and self.die == f"after:{self.books.round}":
            self.fall_over()

    def fall_over(self) -> None:
        (self.folder.parent / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder = Path(str(config["folder"]))
    strategy = Mortal(
        algorithm(),
        clients=CLIENTS,
        folder=folder / str(config["books"]),
        wait=300,
        bind_keys=bool(config["bind-keys"]),
        compress=str(config["compress"]) or None,
        compress_down=str(config["compress-down"]) or None,
        privacy=str(config["privacy"]) or None,
        secure=MaskedSum() if config["masked"] else None,
        max_clients=int(config["max-clients"]),
        **settings(int(config["cohort"])),
    )
    strategy.die = str(config["die"])
    strategy.timeout = float(config["timeout"])
    strategy.open(grid)
    strategy.first = strategy.books.round
    while strategy.books.round < int(config["rounds"]):
        waiting = any(
            "straggles" in path.read_text() or "dies" in path.read_text() for path in faults(config, strategy)
        )
        strategy.timeout = float(config["impatient" if waiting else "timeout"])
        strategy.play(grid)
        (folder / f"round-{strategy.books.round}").touch()
        strategy.timeout = float(config["timeout"])
        record = dict(strategy.records[-1])
        if strategy.books.round >= int(config["audit-from"]):
            audit = strategy.audit(grid)
            record |= {"audit": asdict(audit), "relative": audit.relative}
        with (folder / f"{config['books']}.jsonl").open("a") as file:
            print(json.dumps(record), file=file)


def faults(config: dict[str, object], strategy: Strategy) -> list[Path]:
    """What is to go wrong in the coming round."""
    return list(Path(str(config["faults"])).glob(f"[0-9]-{strategy.books.round + 1}"))
