"""Every algorithm once more, from its own paper, in its own letters and signs, for quadratics in float64.

Nothing here is shared but the gradient of f_i(x) = x'A_i x/2 - b_i'x, and nothing is imported from fedvra:
these functions are what the library is measured against, so they follow the printed pseudo-code line by line
rather than the unified rule. Each takes the clients' ``A`` [N, P, P] and ``b`` [N, P], the start ``x0`` [P],
the ``cohorts`` (one list of client numbers per round), the local step counts ``Q`` [R, N] and a stepsize
``eta`` (a number, [N] or [R, N]), and returns a :class:`Run`. A round in which nobody takes part leaves
everything as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Cohorts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Run:
    """The state before the first round and after each of the R rounds."""

    x0: Array
    """Global model, [R+1, P]."""
    clients: Array
    """Client vectors (c_i, Delta_i, lambda_i, grad L_k: see each function), [R+1, N, P]; else zeros."""
    server: Array
    """Server vector (c, h, lambda: see each function), [R+1, P]; zeros if the method has none."""


class _Record:
    """Copies the state after every round, so that no trajectory aliases a vector still being changed."""

    def __init__(self, N: int, P: int) -> None:
        self.zeros = np.zeros((N, P)), np.zeros(P)
        self.rows: list[tuple[Array, Array, Array]] = []

    def add(self, x0: Array, clients: Array | None = None, server: Array | None = None) -> None:
        clients = self.zeros[0] if clients is None else clients
        server = self.zeros[1] if server is None else server
        self.rows.append((x0.copy(), clients.copy(), server.copy()))

    def run(self) -> Run:
        x0, clients, server = (np.stack(column) for column in zip(*self.rows, strict=True))
        return Run(x0, clients, server)


def _table(value: ArrayLike, cohorts: Cohorts, N: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (len(cohorts), N))


def gradient(A: Array, b: Array, i: int, x: Array) -> Array:
    return A[i] @ x - b[i]


def minimiser(A: Array, b: Array, omega: ArrayLike | None = None) -> Array:
    """Where sum_i omega_i (A_i x - b_i) = 0."""
    w = np.full(len(A), 1 / len(A)) if omega is None else np.asarray(omega)
    return np.linalg.solve(np.einsum("n,npq->pq", w, A), w @ b)


def fedavg(A, b, x0, cohorts, Q, eta, omega=None, p=None, mu=0.0) -> Run:
    """FedAvg as in section 3 of the FedVRA paper, x0 + sum_S (omega_i/p_i)(w_i - x0); FedProx if ``mu`` > 0.

    ``p`` [R, N] holds the inclusion probabilities, |S|/N unless given. FedProx (Li et al. 2020, eq. 2) adds
    mu/2 |w - w^t|^2 to each f_k.
    """
    N, P = b.shape
    omega, eta = np.full(N, 1 / N) if omega is None else np.asarray(omega), _table(eta, cohorts, N)
    w_global, record = np.array(x0, dtype=np.float64), _Record(N, P)
    record.add(w_global)
    for r, S in enumerate(cohorts):
        move = np.zeros(P)
        for k in S:
            w = w_global.copy()
            for _ in range(Q[r][k]):
                w = w - eta[r, k] * (gradient(A, b, k, w) + mu * (w - w_global))
            probability = len(S) / N if p is None else p[r][k]
            move += omega[k] / probability * (w - w_global)
        w_global = w_global + move
        record.add(w_global)
    return record.run()


def fedavg_normalised(A, b, x0, cohorts, Q, eta, n, mu=0.0) -> Run:
    """FedAvg as McMahan et al. 2017 (Algorithm 1) print it: sum_S (n_k/m_t) w_k, m_t = sum_S n_k."""
    N, P = b.shape
    eta = _table(eta, cohorts, N)
    w_global, record = np.array(x0, dtype=np.float64), _Record(N, P)
    record.add(w_global)
    for r, S in enumerate(cohorts):
        if len(S):
            m_t, new = sum(n[k] for k in S), np.zeros(P)
            for k in S:
                w = w_global.copy()
                for _ in range(Q[r][k]):
                    w = w - eta[r, k] * (gradient(A, b, k, w) + mu * (w - w_global))
                new += n[k] / m_t * w
            w_global = new
        record.add(w_global)
    return record.run()


def fednova(A, b, x0, cohorts, Q, eta, omega=None) -> Run:
    """FedNova with plain SGD (Wang et al. 2020): x - tau_eff sum_i p_i eta d_i, d_i = mean gradient.

    tau_eff = sum_i p_i tau_i. With partial participation the data weights p_i are scaled to sum to 1 over the
    cohort.
    """
    N, P = b.shape
    omega = np.full(N, 1 / N) if omega is None else np.asarray(omega)
    x, record = np.array(x0, dtype=np.float64), _Record(N, P)
    record.add(x)
    for r, S in enumerate(cohorts):
        if len(S):
            weights = {i: omega[i] / sum(omega[j] for j in S) for i in S}
            tau_eff, direction = sum(weights[i] * Q[r][i] for i in S), np.zeros(P)
            for i in S:
                y, accumulated = x.copy(), np.zeros(P)
                for _ in range(Q[r][i]):
                    g = gradient(A, b, i, y)
                    accumulated += g
                    y = y - eta * g
                direction += weights[i] * eta * accumulated / Q[r][i]
            x = x - tau_eff * direction
        record.add(x)
    return record.run()


def scaffold(A, b, x0, cohorts, Q, eta, eta_g=1.0) -> Run:
    """SCAFFOLD, option II (Karimireddy et al. 2020, Algorithm 1): clients = c_i, server = c.

    Two vectors go up, the changes of the model and of c_i. K is the number of steps the client really made.
    """
    N, P = b.shape
    eta = _table(eta, cohorts, N)
    x, c, c_i, record = np.array(x0, dtype=np.float64), np.zeros(P), np.zeros((N, P)), _Record(N, P)
    record.add(x, c_i, c)
    for r, S in enumerate(cohorts):
        uploads = []
        for i in S:
            y, K = x.copy(), Q[r][i]
            for _ in range(K):
                y = y - eta[r, i] * (gradient(A, b, i, y) - c_i[i] + c)
            c_plus = c_i[i] - c + (x - y) / (K * eta[r, i])
            uploads.append((y - x, c_plus - c_i[i]))
            c_i[i] = c_plus
        if uploads:
            x = x + eta_g * sum(dy for dy, _ in uploads) / len(S)
            c = c + len(S) / N * (sum(dc for _, dc in uploads) / len(S))
        record.add(x, c_i, c)
    return record.run()


def vrl_sgd(A, b, x0, k, gamma) -> Run:
    """VRL-SGD (Liang et al. 2019, Algorithm 1): clients = Delta_i; it has no server vector.

    Every worker, every round. ``k`` [R] is the period between synchronisations, gamma the learning rate.
    """
    N, P = b.shape
    x_hat, Delta, record = np.array(x0, dtype=np.float64), np.zeros((N, P)), _Record(N, P)
    record.add(x_hat, Delta)
    for period in k:
        x = np.tile(x_hat, (N, 1))
        for _ in range(period):
            for i in range(N):
                v = gradient(A, b, i, x[i]) - Delta[i]
                x[i] = x[i] - gamma * v
        x_hat = x.mean(axis=0)
        Delta = Delta + (x_hat - x) / (period * gamma)
        record.add(x_hat, Delta)
    return record.run()


def fedadmm(A, b, x0, cohorts, Q, eta, gamma, omega=None) -> Run:
    """Federated ADMM, Algorithm 2 of the FedVRA paper: clients = lambda_i, server = lambda."""
    N, P = b.shape
    omega = np.full(N, 1 / N) if omega is None else np.asarray(omega)
    gamma, eta = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (N,)), _table(eta, cohorts, N)
    beta = 1 / np.sum(omega * gamma)
    x, lam, lam_i, record = np.array(x0, dtype=np.float64), np.zeros(P), np.zeros((N, P)), _Record(N, P)
    record.add(x, lam_i, lam)
    for r, S in enumerate(cohorts):
        lam_new, step = lam.copy(), np.zeros(P)
        for i in S:
            x_i = x.copy()
            for _ in range(Q[r][i]):
                x_i = x_i - eta[r, i] * (gradient(A, b, i, x_i) - lam_i[i] + gamma[i] * (x_i - x))
            lam_i[i] = lam_i[i] + gamma[i] * (x - x_i)
            lam_new += omega[i] * gamma[i] * (x - x_i)
            step += omega[i] * gamma[i] * (x_i - x)
        if len(S):
            lam, x = lam_new, x + beta * step - beta * lam_new
        record.add(x, lam_i, lam)
    return record.run()


def consensus_admm(A, b, x0, cohorts, Q, eta, gamma, omega=None) -> Run:
    """ADMM on the consensus problem, section 2.1: x0 minimises the Lagrangian of all N clients.

    The server keeps every client's gamma_i x_i - lambda_i, with x_i = x0 for those who sat the round out, and
    solves for x0 anew: x0 = beta sum_i omega_i (gamma_i x_i - lambda_i). server = sum_i omega_i lambda_i,
    recomputed from all clients.
    """
    N, P = b.shape
    omega = np.full(N, 1 / N) if omega is None else np.asarray(omega)
    gamma, eta = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (N,)), _table(eta, cohorts, N)
    x, lam_i, record = np.array(x0, dtype=np.float64), np.zeros((N, P)), _Record(N, P)
    record.add(x, lam_i, omega @ lam_i)
    for r, S in enumerate(cohorts):
        if len(S):
            x_i = np.tile(x, (N, 1))
            for i in S:
                for _ in range(Q[r][i]):
                    lagrangian = gradient(A, b, i, x_i[i]) - lam_i[i] - gamma[i] * (x - x_i[i])
                    x_i[i] = x_i[i] - eta[r, i] * lagrangian
                lam_i[i] = lam_i[i] + gamma[i] * (x - x_i[i])
            x = omega @ (gamma[:, None] * x_i - lam_i) / (omega @ gamma)
        record.add(x, lam_i, omega @ lam_i)
    return record.run()


@dataclass(frozen=True)
class FedPDRun(Run):
    anchors: Array
    """x_{0,i} of every client, [R+1, N, P]."""


def fedpd(A, b, x0, Q, eta1, eta, communicate: Sequence[bool], start="anchor") -> FedPDRun:
    """FedPD with oracle I (Zhang et al. 2021, Algorithms 1-2): clients = its lambda_i, server = their mean.

    ``eta`` is 1/penalty and the Lagrangian is f_i + <lambda_i, x_i - x_{0,i}> + |x_i - x_{0,i}|^2/(2 eta), so
    that lambda_i has the opposite sign of the FedVRA paper's. ``x0`` of the run is the last model all agreed
    on: where ``communicate[r]`` is False the clients go on from their own anchors and the server sees
    nothing.
    The printed oracle starts at the client's previous x_i (``start="previous"``); "anchor" starts at x_{0,i}.
    """
    N, P = b.shape
    agreed, anchor = np.array(x0, dtype=np.float64), np.tile(np.asarray(x0, dtype=np.float64), (N, 1))
    x, lam = anchor.copy(), np.zeros((N, P))
    record, anchors = _Record(N, P), [anchor.copy()]
    record.add(agreed, lam, lam.mean(axis=0))
    for r, talk in enumerate(communicate):
        for i in range(N):
            x_q = anchor[i].copy() if start == "anchor" else x[i].copy()
            for _ in range(Q[r][i]):
                x_q = x_q - eta1 * (gradient(A, b, i, x_q) + lam[i] + (x_q - anchor[i]) / eta)
            x[i] = x_q
            lam[i] = lam[i] + (x[i] - anchor[i]) / eta
            anchor[i] = x[i] + eta * lam[i]
        if talk:
            agreed = anchor.mean(axis=0)
            anchor = np.tile(agreed, (N, 1))
        record.add(agreed, lam, lam.mean(axis=0))
        anchors.append(anchor.copy())
    run = record.run()
    return FedPDRun(run.x0, run.clients, run.server, np.stack(anchors))


def feddyn(A, b, x0, cohorts, Q, eta, alpha) -> Run:
    """FedDyn (Acar et al. 2021, Algorithm 1): clients = the stored grad L_k(theta_k), server = h.

    The printed algorithm minimises the regularised local loss exactly; here it makes Q gradient steps from
    theta^{t-1}, as its authors' code does. ``m`` is the number of devices there are, as in the paper.
    """
    m, P = b.shape
    eta = _table(eta, cohorts, m)
    theta, h, grad_L, record = np.array(x0, dtype=np.float64), np.zeros(P), np.zeros((m, P)), _Record(m, P)
    record.add(theta, grad_L, h)
    for t, active in enumerate(cohorts):
        theta_k = {}
        for k in active:
            z = theta.copy()
            for _ in range(Q[t][k]):
                z = z - eta[t, k] * (gradient(A, b, k, z) - grad_L[k] + alpha * (z - theta))
            theta_k[k] = z
            grad_L[k] = grad_L[k] - alpha * (z - theta)
        if theta_k:
            h = h - alpha * (1 / m) * sum(theta_k[k] - theta for k in active)
            theta = sum(theta_k.values()) / len(active) - h / alpha
        record.add(theta, grad_L, h)
    return record.run()


def fedvra(A, b, x0, cohorts, Q, eta, gamma, a, d, omega=None) -> Run:
    """FedVRA, Algorithm 1 as printed: clients = lambda_i, server = lambda.

    ``a`` and ``d`` are numbers, [N] or [R, N]; ``gamma`` a number or [N];
    beta = 1/sum_i omega_i gamma_i over all N clients. An empty round is skipped, where step 20 taken
    literally would still move x0 by -beta lambda.
    """
    N, P = b.shape
    omega = np.full(N, 1 / N) if omega is None else np.asarray(omega)
    gamma = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (N,))
    a, d, eta = _table(a, cohorts, N), _table(d, cohorts, N), _table(eta, cohorts, N)
    beta = 1 / sum(omega[i] * gamma[i] for i in range(N))
    x_0, lam, lam_i = np.array(x0, dtype=np.float64), np.zeros(P), np.zeros((N, P))
    record = _Record(N, P)
    record.add(x_0, lam_i, lam)
    for r, A_r in enumerate(cohorts):
        if len(A_r) == 0:
            record.add(x_0, lam_i, lam)
            continue
        upload = {}
        for i in A_r:
            x = x_0.copy()  # step 9
            for _ in range(Q[r][i]):  # steps 10-12
                x = x - eta[r, i] * (gradient(A, b, i, x) - lam_i[i] + gamma[i] * (x - x_0))
            lam_i[i] = lam_i[i] + a[r, i] * gamma[i] * (x_0 - x)  # step 14
            upload[i] = gamma[i] * (x - x_0)  # step 15
        lam = lam + sum(omega[i] * a[r, i] * (-upload[i]) for i in A_r)  # step 19
        x_0 = x_0 + beta * sum(omega[i] * d[r, i] * upload[i] for i in A_r) - beta * lam  # step 20
        record.add(x_0, lam_i, lam)
    return record.run()
