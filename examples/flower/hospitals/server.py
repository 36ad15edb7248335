"""What runs at the server: who takes part, with which algorithm, and where its books are."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedvra as fv
import fedvra.flower
from hospitals.problem import problem

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = fedvra.flower.Strategy(
        fv.FedVRA(gamma=0.1, a=5),
        problem=problem,
        clients=int(config["clients"]),
        sampler=fv.Full(),
        work=fv.Epochs(2),
        lr=0.05,
        batch_size=20,
        seed=0,
        weights="samples",
        folder=str(config["folder"]),
    )
    result = strategy.start(grid, num_rounds=int(config["rounds"]), timeout=float(config["timeout"]))
    audit = strategy.audit(grid)
    print(f"audit: the duals add up to {audit.relative:.1e} of their sum; not heard: {audit.missing or 'nobody'}")
    fv.save_model(result.arrays.to_torch_state_dict(), Path(str(config["folder"])) / "model.safetensors")
