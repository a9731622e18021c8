"""A playground in the browser: paint labels, watch the segmentation follow (`crfield app`).

It needs starlette and uvicorn. The server listens on this machine only; what it refuses and
why is in `docs/security.md`.
"""

from crfield.app.limits import Limits
from crfield.app.serving import RunningApp, serve

__all__ = ["Limits", "RunningApp", "serve"]
