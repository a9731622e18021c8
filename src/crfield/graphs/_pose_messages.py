"""Messages between two parts, each with a position and an orientation.

A term is table[a, b] + sum_axes w (x + d - y)^2 for orientations a of the sender and b of the
receiver, at positions y and x, where w and d may depend on a, on b, on both or on neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crfield.graphs.distances import Doubles, sum_images, transform_images


@dataclass(frozen=True)
class Link:
    """The term between a sender and a receiver.

    table : (A, B).
    weights, offsets : (A or 1, B or 1, 2); 1 where they do not depend on that orientation.
    """

    table: Doubles
    weights: Doubles
    offsets: Doubles

    def reversed(self) -> Link:
        """The same term, the receiver sending."""
        return Link(self.table.T, self.weights.swapaxes(0, 1), -self.offsets.swapaxes(0, 1))

    @property
    def depends_on_sender(self) -> bool:
        """Whether weights or offsets differ between the sender's orientations."""
        return len(self.weights) > 1 or len(self.offsets) > 1

    def prepared(self, images: Doubles, sender: int) -> tuple[Doubles, Doubles, Doubles]:
        """Images (n, H, W) of one of the sender's orientations, with weights and offsets (n, 2).

        n is 1 where one image was given and all orientations of the receiver are alike, else B.
        """
        weights, offsets = (
            values[sender % len(values)] for values in (self.weights, self.offsets)
        )
        n = max(len(images), len(weights), len(offsets))
        images, weights, offsets = (
            np.ascontiguousarray(np.broadcast_to(array, (n, *array.shape[1:])))
            for array in (images, weights, offsets)
        )
        return images, weights, offsets


def min_message(
    costs: Doubles, link: Link, threads: int
) -> tuple[Doubles, NDArray[np.int64]]:
    """min over the sender's states of costs (A, H, W) + term, (B, H, W), and which state it is.

    The state of orientation a at pixel i is a H W + i.
    """
    n_pixels = costs[0].size
    if not link.depends_on_sender:
        # The term of positions is the same for all of them: the orientation is chosen first.
        shape = (link.table.shape[1], *costs.shape[1:])
        least, chosen = np.empty(shape), np.empty(shape, np.int64)
        for b, column in enumerate(link.table.T):
            options = costs + column[:, None, None]
            options.argmin(0, out=chosen[b])
            options.min(0, out=least[b])
        values, pixels = transform_images(*link.prepared(least, 0), threads)
        flat = pixels.reshape(len(pixels), -1).astype(np.int64)
        states = np.take_along_axis(chosen.reshape(flat.shape), flat, 1) * n_pixels + flat
        return values, states.reshape(values.shape)
    values = np.full((link.table.shape[1], *costs.shape[1:]), np.inf)
    states = np.zeros(values.shape, np.int64)
    for a, row in enumerate(link.table):
        least, pixels = transform_images(*link.prepared(costs[a, None], a), threads)
        found = least + row[:, None, None]
        is_lower = found < values
        np.copyto(values, found, where=is_lower)
        np.copyto(states, a * n_pixels + pixels.astype(np.int64), where=is_lower)
    return values, states


def sum_message(costs: Doubles, link: Link, threads: int) -> Doubles:
    """-log sum over the sender's states of exp(-(costs (A, H, W) + term)), (B, H, W)."""
    if not link.depends_on_sender:
        joined = np.stack([soft_minimum(costs + row[:, None, None]) for row in link.table.T])
        return sum_images(*link.prepared(joined, 0), threads)
    parts = np.empty((len(costs), link.table.shape[1], *costs.shape[1:]))
    for a, row in enumerate(link.table):
        sums = sum_images(*link.prepared(costs[a, None], a), threads)
        parts[a] = sums + row[:, None, None]
    return soft_minimum(parts)


def soft_minimum(values: Doubles) -> Doubles:
    """-log sum_a exp(-values[a]), +inf where all are."""
    if len(values) == 1:
        return np.asarray(values[0])
    least = np.asarray(values.min(0))
    least[np.isinf(least)] = 0.0  # so that nothing is inf - inf
    with np.errstate(divide="ignore"):
        return np.asarray(least - np.log(np.exp(least - values).sum(0)))
