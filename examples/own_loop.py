"""A training loop of one's own, federated: three lines say which model, which optimiser and what is sent.

    python examples/own_loop.py

The hook adds SCAFFOLD's correction to every gradient before optimizer.step(), and counts steps and stepsizes, so that what
the server makes of them is right whatever the loop does. fedvra.flower.client takes the same function on a real federation.
"""

import torch
from own_model_and_data import Net, patients
from torch.nn.functional import cross_entropy

import fedvra as fv


def train(work: fv.LocalWork) -> torch.Tensor:
    model = work.model()
    optimizer = work.hook(torch.optim.SGD(model.parameters(), lr=work.eta, momentum=0.9))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    loader = torch.utils.data.DataLoader(work.dataset(), batch_size=20, shuffle=True)
    for _ in range(3 if work.client % 2 else 1):  # as much as this hospital cares to do
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            work.report(loss)
    return work.move()


def main() -> fv.History:
    inputs, targets, hospital = patients(1600, seed=1)
    history = fv.simulate(
        fv.Scaffold(),
        problem=fv.Supervised(Net, weight_decay=1e-3),
        data=fv.split((inputs, targets), fv.ByColumn(hospital), test=patients(1000, seed=2)[:2]),
        sampler=fv.Uniform(4),
        work=fv.Epochs(2),
        lr=0.01,
        batch_size=20,
        rounds=12,
        local=fv.Loop(train),
    )
    for record in history.metrics:
        steps, accuracy = record["local_steps"], record["test_accuracy"]
        print(f"round {record['round']:2d}  steps {steps:3d}  accuracy {accuracy:.1%}")
    return history


if __name__ == "__main__":
    main()
