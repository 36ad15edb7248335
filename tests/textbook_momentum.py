"""FedAvg, FedNova, SCAFFOLD and FedDyn whose clients run SGD with momentum, from their papers, as in ``textbook.py``.

FedNova's paper (Wang et al. 2020, section 4) writes a move as -eta*G_i*a_i, with the gradients a client met as the columns of
G_i and a vector a_i that says how often each was used; its norm |a_i|_1 stands where plain SGD has the number of steps. Here
a_i is entry by entry from that paper, and the moves are made from G_i and a_i where the paper does so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from textbook import Array, Run, _Record, gradient


def momentum_sgd(slope: Callable[[Array], Array], x: Array, tau: int, eta: float, rho: float, nesterov: bool) -> Array:
    """As torch.optim.SGD documents it, with dampening 0."""
    y, v = x.copy(), None
    for _ in range(tau):
        g = slope(y)
        v = g if v is None else rho * v + g
        y = y - eta * (g + rho * v if nesterov else v)
    return y


def accumulation(tau: int, rho: float, nesterov: bool) -> Array:
    """a_i: entry k is how often the gradient of step k has been added by the end of step tau."""
    last = tau + 1 if nesterov else tau
    return np.array([(1 - rho ** (last - k)) / (1 - rho) for k in range(tau)])


def fedavg(A, b, x0, cohorts, Q, eta, rho, nesterov=False) -> Run:
    """McMahan et al. 2017, Algorithm 1, with equal weights; the client's optimiser is momentum SGD."""
    N, P = b.shape
    w, record = np.array(x0, dtype=np.float64), _Record(N, P)
    record.add(w)
    for r, S in enumerate(cohorts):
        if len(S):
            found = [momentum_sgd(lambda y, k=k: gradient(A, b, k, y), w, Q[r][k], eta, rho, nesterov) for k in S]
            w = sum(found) / len(S)
        record.add(w)
    return record.run()


def fednova(A, b, x0, cohorts, Q, eta, rho, nesterov=False) -> Run:
    """x - tau_eff sum_i p_i eta d_i with d_i = G_i a_i/|a_i|_1 and tau_eff = sum_i p_i |a_i|_1, p_i equal in the cohort."""
    N, P = b.shape
    x, record = np.array(x0, dtype=np.float64), _Record(N, P)
    record.add(x)
    for r, S in enumerate(cohorts):
        if len(S):
            directions, norms = [], []
            for i in S:
                y, v, G = x.copy(), np.zeros(P), []
                for _ in range(Q[r][i]):
                    G.append(gradient(A, b, i, y))
                    v = rho * v + G[-1]
                    y = y - eta * (G[-1] + rho * v if nesterov else v)
                a = accumulation(Q[r][i], rho, nesterov)
                directions.append(np.column_stack(G) @ a / np.abs(a).sum())
                norms.append(np.abs(a).sum())
            tau_eff = np.mean(norms)
            x = x - tau_eff * eta * np.mean(directions, axis=0)
        record.add(x)
    return record.run()


def scaffold(A, b, x0, cohorts, Q, eta, rho, nesterov=False) -> Run:
    """Karimireddy et al. 2020, option II, with |a_i|_1 for K: clients = c_i, server = c."""
    N, P = b.shape
    x, c, c_i, record = np.array(x0, dtype=np.float64), np.zeros(P), np.zeros((N, P)), _Record(N, P)
    record.add(x, c_i, c)
    for r, S in enumerate(cohorts):
        moves, changes = [], []
        for i in S:
            y = momentum_sgd(
                lambda y, i=i: gradient(A, b, i, y) - c_i[i] + c,  # noqa: B023 - used at once
                x,
                Q[r][i],
                eta,
                rho,
                nesterov,
            )
            plus = c_i[i] - c + (x - y) / (eta * np.abs(accumulation(Q[r][i], rho, nesterov)).sum())
            moves.append(y - x)
            changes.append(plus - c_i[i])
            c_i[i] = plus
        if len(S):
            x, c = x + np.mean(moves, axis=0), c + len(S) / N * np.mean(changes, axis=0)
        record.add(x, c_i, c)
    return record.run()


def feddyn(A, b, x0, cohorts, Q, eta, alpha, rho, nesterov=False) -> Run:
    """Acar et al. 2021, Algorithm 1, the local problem by Q momentum steps: clients = grad L_k(theta_k), server = h."""
    m, P = b.shape
    theta, h, grad_L, record = np.array(x0, dtype=np.float64), np.zeros(P), np.zeros((m, P)), _Record(m, P)
    record.add(theta, grad_L, h)
    for t, active in enumerate(cohorts):
        theta_k = {}
        for k in active:
            theta_k[k] = momentum_sgd(
                lambda z, k=k: gradient(A, b, k, z) - grad_L[k] + alpha * (z - theta),  # noqa: B023 - used at once
                theta,
                Q[t][k],
                eta,
                rho,
                nesterov,
            )
            grad_L[k] = grad_L[k] - alpha * (theta_k[k] - theta)
        if theta_k:
            h = h - alpha * (1 / m) * sum(theta_k[k] - theta for k in active)
            theta = sum(theta_k.values()) / len(active) - h / alpha
        record.add(theta, grad_L, h)
    return record.run()
