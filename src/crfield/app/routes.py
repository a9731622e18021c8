"""What the page may ask for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import resources

from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from crfield import __version__
from crfield._core.validate import InputError, as_choice
from crfield.app.answers import (
    ERROR_HANDLERS,
    Job,
    JobResponse,
    in_thread,
    labels_picture,
    png,
)
from crfield.app.connections import Connections
from crfield.app.guards import Guard, refusal
from crfield.app.limits import MAX_PAINTED_LABELS
from crfield.app.opening import (
    decode_image,
    decode_initial,
    decode_model,
    open_sample,
    split_request,
    upload_name,
)
from crfield.app.refining import LARGE, StepCallback, refine_image
from crfield.app.settings import ALGORITHMS, Settings
from crfield.app.snippet import snippet
from crfield.app.workspace import OpenImage, Refinement, UnknownError, Workspace
from crfield.datasets import sample_names
from crfield.dense.filters import KeptFilters
from crfield.show.pictures import label_palette, overlay, show

_STATIC = resources.files("crfield.app") / "static"


def create_app(connections: Connections) -> Guard:
    """The whole application, guard included, as an ASGI callable."""
    routes = Routes(Workspace(connections.limits))
    app = Starlette(routes=routes.table(), exception_handlers=ERROR_HANDLERS)
    return Guard(app, connections, routes.stop)


class Routes:
    """The handlers, which share one workspace; heavy work happens in threads."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.limits = workspace.limits
        # Inference has threads of its own: one run at a time is fastest.
        self._inference = ThreadPoolExecutor(1, "crfield-inference")
        self._jobs: set[Job] = set()
        self._pictures: dict[tuple[int, str], asyncio.Future[bytes]] = {}  # being made
        self._kept = KeptFilters()  # of the image that was refined last
        self._decoding = asyncio.Semaphore(1)  # files may unpack to much more than they are

    def stop(self) -> None:
        """Cancel all refinements that are under way or waiting."""
        for job in self._jobs:
            job.end()

    def table(self) -> list[Route | Mount]:
        """Paths and what answers them."""
        image = "/api/images/{id}"
        return [
            Route("/", self.page),
            Route("/api/state", self.state),
            Route("/api/images", self.upload_image, methods=["POST"]),
            Route("/api/samples/{name}", self.open_sample, methods=["POST"]),
            Route("/api/models", self.upload_model, methods=["POST"]),
            Route(f"{image}/picture.png", self.picture),
            Route(f"{image}/initial", self.upload_initial, methods=["POST"]),
            Route(f"{image}/initial", self.drop_initial, methods=["DELETE"]),
            Route(f"{image}/refine", self.refine, methods=["POST"]),
            Route(f"{image}/mask.png", self.mask),
            Route(f"{image}/overlay.png", self.overlay),
            Route(f"{image}/scribbles.png", self.scribbles),
            Route(f"{image}/snippet.py", self.snippet),
            Mount("/static", StaticFiles(packages=[("crfield.app", "static")])),
        ]

    async def page(self, request: Request) -> Response:
        """The page itself."""
        return Response((_STATIC / "index.html").read_bytes(), media_type="text/html")

    async def state(self, request: Request) -> Response:
        """What the page needs to know to begin."""
        return JSONResponse({
            "version": __version__,
            "samples": [{"name": name, "title": name.capitalize()} for name in sample_names()],
            "algorithms": ALGORITHMS,
            "max_labels": MAX_PAINTED_LABELS,
            "max_pixels": self.limits.max_pixels,
            "max_live_pixels": LARGE,
            "max_bytes": self.limits.max_bytes,
            "max_iter": self.limits.max_iter,
            "palette": label_palette(MAX_PAINTED_LABELS).tolist(),
            "defaults": asdict(Settings()),
        })

    async def upload_image(self, request: Request) -> Response:
        """Open an image from its bytes."""
        data = await request.body()
        async with self._decoding:
            pixels = await in_thread(decode_image, data, self.limits.max_pixels)
        return self._opened(OpenImage(upload_name(request, "image.png"), pixels))

    async def open_sample(self, request: Request) -> Response:
        """Open a photo that comes with the package."""
        return self._opened(await in_thread(open_sample, request.path_params["name"]))

    async def picture(self, request: Request) -> Response:
        """The image as the page shows it."""
        image = self._image(request)
        return await self._png(image.pixels, "picture", lambda: show(image.pixels))

    async def upload_initial(self, request: Request) -> Response:
        """Take a label map or probabilities to start from."""
        image = self._image(request)
        kind = as_choice(
            request.query_params.get("kind"), "kind", ("labels", "probabilities", "logits")
        )
        data = await request.body()
        name = upload_name(request, f"{kind}.npy")
        async with self._decoding:
            initial = await in_thread(decode_initial, data, kind, image.grid, self.limits, name)
        image.initial = initial
        self.workspace.trim()
        names = [str(value) for value in initial.segmentation.ids.tolist()]
        return JSONResponse({
            "kind": initial.kind, "n_labels": len(names), "names": names,
            "defaults": asdict(Settings.of_segmentation(initial.segmentation.kind, image.grid)),
        })

    async def drop_initial(self, request: Request) -> Response:
        """Go back to scribbles."""
        self._image(request).initial = None
        return JSONResponse({})

    async def upload_model(self, request: Request) -> Response:
        """Take a learned model."""
        model = await in_thread(decode_model, await request.body())
        if model.n_labels > MAX_PAINTED_LABELS:
            raise InputError(
                f"expected a model of at most {MAX_PAINTED_LABELS} labels, got {model.n_labels}; "
                "use crfield.refine."
            )
        return JSONResponse({
            "id": self.workspace.models.add(model), "n_labels": model.n_labels,
            "terms": [repr(term) for term in model.terms],
            "algorithm": model.algorithm, "max_iter": model.max_iter,
        })

    async def refine(self, request: Request) -> Response:
        """Refine from settings and scribbles; a newer request for an image ends the older."""
        image = self._image(request)
        body = await request.body()
        settings, scribbles = await in_thread(split_request, body, image.grid, self.limits)
        model = None if settings.model is None else self.workspace.models[settings.model]
        self._jobs = {job for job in self._jobs if not job.is_over}
        if len(self._jobs) >= self.limits.max_waiting:
            return refusal(429, "too many refinements are waiting; try again in a moment.")
        cancelled = threading.Event()
        image.newest_job.set()
        image.newest_job = cancelled

        def work(callback: StepCallback) -> Refinement:
            done = refine_image(
                image, settings, scribbles, model, callback, cancelled, self._kept
            )
            image.refinement = done
            return done

        job = Job(work, self._inference, cancelled)
        self._jobs.add(job)
        return JobResponse(job)

    async def mask(self, request: Request) -> Response:
        """The labels of the last refinement, as a palette picture of their ids."""
        done = self._refinement(request)
        return await self._png(done, "mask", lambda: labels_picture(done))

    async def overlay(self, request: Request) -> Response:
        """The image under the last refinement's colors."""
        image, done = self._image(request), self._refinement(request)
        return await self._png(done, "overlay", lambda: overlay(show(image.pixels), done.labels))

    async def scribbles(self, request: Request) -> Response:
        """What was painted, or an example to begin with; 255 where nothing is."""
        image = self._image(request)
        painted = image.example if image.refinement is None else image.refinement.scribbles
        if painted is None:
            raise UnknownError("nothing is painted yet; paint first.")
        return await self._png(painted, "scribbles", lambda: Image.fromarray(painted))

    async def snippet(self, request: Request) -> Response:
        """The script that does the same."""
        text = snippet(self._image(request), self._refinement(request))
        return Response(text, media_type="text/x-python")

    async def _png(self, origin: object, name: str, draw: Callable[[], Image.Image]) -> Response:
        """A picture of `origin`. All who ask for it while it is being made get the same one, or a
        few dozen requests for a large one would keep everybody else waiting.
        """
        key = (id(origin), name)  # `draw` keeps it alive
        if key not in self._pictures:
            self._pictures[key] = asyncio.ensure_future(in_thread(lambda: png(draw())))
            self._pictures[key].add_done_callback(lambda _: self._pictures.pop(key))
        return Response(await asyncio.shield(self._pictures[key]), media_type="image/png")

    def _opened(self, image: OpenImage) -> Response:
        height, width = image.grid
        return JSONResponse({
            "id": self.workspace.open(image), "width": width, "height": height,
            "name": image.name, "names": image.label_names or None,
            "scribbles": image.example is not None,
            "defaults": asdict(Settings.of_image(image.grid)),
        })

    def _image(self, request: Request) -> OpenImage:
        return self.workspace.images[request.path_params["id"]]

    def _refinement(self, request: Request) -> Refinement:
        done = self._image(request).refinement
        if done is None:
            raise UnknownError("nothing is refined yet; paint two labels first.")
        return done
