"""Independent float64 brute force: NumPy and itertools only, nothing from the package."""

import itertools
import math

import numpy as np


def kernel_matrix(features, shape="gaussian"):
    """K (N, N) from features (N, D) that are already divided by their widths."""
    f = np.asarray(features, dtype=np.float64)
    difference = f[:, None, :] - f[None, :, :]
    if shape == "gaussian":
        return np.exp(-0.5 * (difference**2).sum(-1))
    if shape == "tent":
        return np.maximum(1.0 - np.abs(difference).sum(-1), 0.0)
    if shape == "sinc":
        return np.sinc(difference / np.pi).prod(-1)
    raise AssertionError(shape)


def normalized(kernel, normalization):
    """K with one of the four normalizations, from its plain form."""
    rows = kernel.sum(1)
    if normalization == "none":
        return kernel
    if normalization == "before":
        return kernel / rows[None, :]
    if normalization == "after":
        return kernel / rows[:, None]
    return kernel / np.sqrt(rows[:, None] * rows[None, :])


def lattice_matrix(features):
    """The averaged permutohedral filter as a dense matrix, vertices in a dictionary.

    Every point is splatted, blurred along the axes in both orders and sliced, following Adams et
    al. (2010) with no shared code: positions by their definition, not by the fast recurrences.
    """
    f = np.asarray(features, dtype=np.float64)
    n, d = f.shape
    corners = d + 1
    # Columns of E: an orthogonal basis of the hyperplane sum(x) = 0.
    basis = np.zeros((corners, d))
    for j in range(d):
        basis[: j + 1, j] = 1.0
        basis[j + 1, j] = -(j + 1)
    width = corners * math.sqrt(2.0 / 3.0)
    position = f @ (basis * (width / np.linalg.norm(basis, axis=0))).T
    vertices: dict[tuple[int, ...], int] = {}
    splat_entries = []
    for i in range(n):
        # The enclosing simplex: the remainder-0 point below, then one corner at a time.
        base = np.rint(position[i] / corners).astype(np.int64) * corners
        residual = position[i] - base
        order = sorted(range(corners), key=lambda j: (-residual[j], j))
        excess = int(base.sum()) // corners
        if excess > 0:  # too high: the coordinates with the smallest residuals go down
            for j in order[corners - excess :]:
                base[j] -= corners
        elif excess < 0:
            for j in order[: -excess]:
                base[j] += corners
        residual = position[i] - base
        order = sorted(range(corners), key=lambda j: (-residual[j], j))
        # Barycentric weights from the sorted residuals.
        sorted_residual = residual[order]
        weight = np.empty(corners)
        for k in range(1, corners):
            weight[k] = (sorted_residual[corners - 1 - k] - sorted_residual[corners - k]) / corners
        weight[0] = 1.0 - weight[1:].sum()
        for k in range(corners):
            key = base + k
            key[order[corners - k :]] -= corners
            splat_entries.append((i, vertices.setdefault(tuple(key), len(vertices)), weight[k]))
    m = len(vertices)
    splat = np.zeros((n, m))
    for i, v, w in splat_entries:
        splat[i, v] += w
    blurs = []
    for axis in range(corners):
        blur = 0.5 * np.eye(m)
        for key, v in vertices.items():
            for sign in (1, -1):
                neighbor = np.asarray(key) + sign
                neighbor[axis] -= sign * corners
                other = vertices.get(tuple(neighbor))
                if other is not None:
                    blur[v, other] += 0.25
        blurs.append(blur)
    forward, backward = np.eye(m), np.eye(m)
    for blur in blurs:
        forward = blur @ forward
        backward = backward @ blur
    return splat @ (0.5 * (forward + backward)) @ splat.T


def grid_matrix(features):
    """The filter through a coarser grid as a dense matrix: interpolation, a blur, back.

    Axes separate: K_ij is the product over the axes of sum_ab s_ia b(a - b) s_jb, with the shares s
    of the two nodes around a point and the blur b = (1, 4, 6, 4, 1) / 16, times (2 pi)^(D/2) for
    the Gaussian's mass and 1 / spacing^D for that of the filter.
    """
    spacing = math.sqrt(3.0) / 2.0
    f = np.asarray(features, dtype=np.float64)
    dense = np.full((len(f), len(f)), (2 * math.pi) ** (f.shape[1] / 2) / spacing ** f.shape[1])
    for along in f.T:
        below = np.floor(along / spacing)
        above = along / spacing - below
        product = np.zeros_like(dense)
        nodes = ((below, 1 - above), (below + 1, above))
        for (one, share), (other, other_share) in itertools.product(nodes, nodes):
            distance = np.abs(np.subtract.outer(one, other))
            blur = np.select([distance == n for n in range(3)], [6 / 16, 4 / 16, 1 / 16])
            product += share[:, None] * blur * other_share
        dense *= product
    return dense


def central_differences(function, x, step=1e-6):
    """d function / d x, one entry of x after the other."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            values.append(function(moved))
        found[index] = (values[0] - values[1]) / (2 * step)
    return found


def tied(entries):
    """The matrix, or the gradient by it, with (a, b) and (b, a) tied, from independent entries."""
    return entries + entries.T - np.diag(np.diag(entries))


def softmax(x):
    """exp(x), normalized along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def enumerate_states(n, n_labels):
    """All label assignments, one per row."""
    return np.array(list(itertools.product(range(n_labels), repeat=n)))


def energy(labels, unary, pairs):
    """E(x) = sum_i u_i(x_i) + sum_{i<j} sum_m mu(x_i, x_j) k_ij; pairs is a list of (K, mu)."""
    n = len(labels)
    total = sum(unary[i, labels[i]] for i in range(n))
    for kernel, mu in pairs:
        for i in range(n):
            for j in range(i + 1, n):
                total += mu[labels[i], labels[j]] * kernel[i, j]
    return float(total)


def graph_energies(costs, edges, tables):
    """All labelings of a graph, one per row, and their energies; tables : (E, L, L)."""
    states = enumerate_states(*costs.shape)
    energies = costs[np.arange(len(costs)), states].sum(1)
    for table, (i, j) in zip(tables, edges, strict=True):
        energies = energies + table[states[:, i], states[:, j]]
    return states, energies


def log_partition(unary, pairs):
    """log Z by enumeration."""
    energies = [energy(x, unary, pairs) for x in enumerate_states(*unary.shape)]
    lowest = min(energies)
    return -lowest + math.log(sum(math.exp(lowest - e) for e in energies))


def kl_divergence(q, unary, pairs):
    """D(Q || P) by enumeration, KK11 supplement eq. 4."""
    log_z = log_partition(unary, pairs)
    total = 0.0
    for x in enumerate_states(*unary.shape):
        p = float(np.prod([q[i, label] for i, label in enumerate(x)]))
        if p > 0:
            total += p * (math.log(p) + energy(x, unary, pairs) + log_z)
    return total


def free_energy(q, unary, pairs, self_pairs):
    """q'log q + q'u + 1/2 q' Psi q with or without self-pairs (KK13 eq. 9 and eq. 4)."""
    positive = q[q > 0]
    total = float((positive * np.log(positive)).sum() + (q * unary).sum())
    for kernel, mu in pairs:
        k = kernel if self_pairs else kernel - np.diag(np.diag(kernel))
        total += 0.5 * float((q * (k @ q @ mu)).sum())
    return total


def solve_kkt(e, m):
    """The minimizer of q'log q + q'e - q'Mq/2 on the simplex, M negative semidefinite on it.

    Exponentiated gradient with a step that makes each iteration a descent step; slow and plain.
    """
    bound = 1.0 + np.abs(np.linalg.eigvalsh(m)).max()
    log_q = -e - np.log(np.exp(-(e - e.min())).sum()) + e.min()
    for _ in range(20000):
        q = np.exp(log_q)
        fresh = log_q - (log_q + e - m @ q) / bound
        fresh -= np.log(np.exp(fresh - fresh.max()).sum()) + fresh.max()
        done = np.abs(np.exp(fresh) - q).max() < 1e-15
        log_q = fresh
        if done:
            break
    return np.exp(log_q)
