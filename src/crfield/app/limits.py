"""How much a page may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PAINTED_LABELS = 32  # colors that can be told apart
MAX_SETTINGS_BYTES = 2**16


@dataclass(frozen=True)
class Limits:
    """Limits that are checked before any work is done.

    Attributes
    ----------
    max_bytes : of one upload.
    max_in_flight : bytes of all requests that are being answered.
    max_array_bytes : of the segmentation that an upload unpacks to.
    max_unread : bytes of all answers that are not read yet.
    max_connections : that are open at a time, or half as many as the process may have open files.
    head_seconds : that a request may take to begin and to send its head.
    body_seconds, read_seconds : that a client may pause while it sends a request, or while it reads
        an answer.
    min_rate : bytes per second that a client sends or reads at least.
    max_pixels : of one image, whatever its file announces.
    max_iter : iterations of one inference.
    max_images, max_models : that are kept open; the one used longest ago goes first.
    max_memory : bytes that open images may take together.
    max_requests : that are answered at a time.
    max_waiting : inferences that run or wait for their turn.
    """

    max_bytes: int = 64 * 2**20
    max_in_flight: int = 256 * 2**20
    max_array_bytes: int = 512 * 2**20
    max_unread: int = 256 * 2**20
    max_connections: int = 256
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    read_seconds: float = 20.0
    min_rate: float = 16 * 2**10
    max_pixels: int = 16_000_000
    max_iter: int = 500
    max_images: int = 16
    max_models: int = 8
    max_memory: int = 2 * 2**30
    max_requests: int = 192
    max_waiting: int = 16

    def max_body(self, path: str) -> int:
        """Bytes of a request to this path: one to refine has as many as the image has pixels."""
        if path.endswith("/refine"):
            return self.max_pixels + MAX_SETTINGS_BYTES + 4
        return self.max_bytes
