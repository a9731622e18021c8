"""`crfield app`: paint labels in the browser and watch them refined."""

from __future__ import annotations

import argparse
import threading
import webbrowser
from typing import Any


def add_command(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "app",
        help="paint labels on an image in the browser and see them refined",
        description=(
            "Open a page in the browser: paint labels on an image, or load a segmentation or a "
            "learned model, and watch the result as you paint and move sliders. Only this machine "
            "can reach it. Stop it with Ctrl+C."
        ),
    )
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for any (default: 8000)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of this machine (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the address, open nothing"
    )
    parser.add_argument(
        "--max-pixels", type=int, metavar="N", help="largest image, in pixels (default: 16000000)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from crfield._core.validate import as_count
    from crfield.app import Limits, serve

    limits = Limits()
    if arguments.max_pixels is not None:
        limits = Limits(max_pixels=as_count(arguments.max_pixels, "--max-pixels", maximum=10**9))

    def ready(url: str) -> None:
        print(f"crfield app: {url} (Ctrl+C stops it)", flush=True)
        if not arguments.no_browser:  # in a thread, since some browsers wait for the page
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    serve(arguments.port, host=arguments.host, limits=limits, ready=ready)
    return 0
