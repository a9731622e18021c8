"""The playground's server, spoken to as a page would, and as a page should not."""

import ast
import contextlib
import http.client
import io
import json
import re
import socket
import struct
import threading
from importlib import resources
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the playground needs starlette")
pytest.importorskip("uvicorn", reason="the playground needs uvicorn")

import crfield
from crfield.app import Limits, RunningApp, serve
from crfield.app.settings import Settings
from crfield.datasets import load_sample
from crfield.show.palette import uncertainty_ramp
from hostile_requests import OWN, npy
from hostile_requests import packed as framed
from refusal import refusal


@pytest.fixture(scope="module")
def app():
    with RunningApp(Limits(max_bytes=2**20, max_pixels=200_000, max_iter=400)) as running:
        yield running


def connect(app):
    address = urlsplit(app.url)
    return contextlib.closing(
        http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    )


def ask(app, method, path, body=None, headers=OWN):
    """Status, headers and body of an answer."""
    with connect(app) as connection:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def told(app, method, path, body=None, headers=OWN):
    """The JSON of an answer that must be fine."""
    status, _, content = ask(app, method, path, body, headers)
    assert status == 200, content
    return json.loads(content)


def sentence(app, status, method, path, body=None, headers=OWN):
    """The error of an answer that must have this status."""
    got, _, content = ask(app, method, path, body, headers)
    assert got == status, (got, content)
    text = json.loads(content)["error"]
    assert "Traceback" not in text
    assert "/tmp" not in text
    return text


def as_png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def packed(scribbles, **settings):
    return framed(json.dumps(settings).encode(), scribbles.astype(np.uint8).tobytes())


def frames(content):
    """Kinds and contents of the frames of a stream."""
    found = []
    while content:
        kind, length = struct.unpack_from("<BI", content)
        assert len(content) >= 5 + length
        found.append((kind, content[5 : 5 + length]))
        content = content[5 + length :]
    return found


def refined(app, key, scribbles, **settings):
    """The report and the planes (3, H, W) of a refinement, and its progress."""
    status, _, content = ask(
        app, "POST", f"/api/images/{key}/refine", packed(scribbles, **settings)
    )
    assert status == 200, content
    *progress, (kind, last) = frames(content)
    assert kind == 2, last
    assert all(k == 1 for k, _ in progress)
    (length,) = struct.unpack_from("<I", last)
    planes = np.frombuffer(last[4 + length :], np.uint8).reshape(3, *scribbles.shape)
    return json.loads(last[4 : 4 + length]), planes, [json.loads(p) for _, p in progress]


def refused_work(app, key, scribbles, **settings):
    """The error that is the one frame of a refinement's stream."""
    body = packed(scribbles, **settings)
    ((_, frame),) = frames(ask(app, "POST", f"/api/images/{key}/refine", body)[2])
    return json.loads(frame)["error"]


def picture(app, key, name):
    """The pixels of one of the pictures of an image."""
    return np.asarray(Image.open(io.BytesIO(ask(app, "GET", f"/api/images/{key}/{name}")[2])))


@pytest.fixture
def mask_of_script(app, tmp_path, monkeypatch):
    """What the script of an image writes in a folder with the image and other files."""
    monkeypatch.chdir(tmp_path)

    def run(key, image, **files):
        for name, content in {"photo.png": as_png(image), **files}.items():
            (tmp_path / name).write_bytes(content)
        exec(compile(ask(app, "GET", f"/api/images/{key}/snippet.py")[2], "snippet", "exec"), {})
        return np.array(Image.open("mask.png"))

    return run


def opened(app):
    """A small photo that is open, with scribbles for two labels."""
    sample = load_sample("camera")
    image = sample.image[40:140, 60:180]
    scribbles = np.full(image.shape[:2], 255, np.uint8)
    scribbles[5:9, 5:40], scribbles[60:64, 40:80] = 0, 1
    answer = told(app, "POST", "/api/images?name=photo.png", as_png(image))
    assert answer["names"] is None
    key = answer["id"]
    return key, image, scribbles


def test_state_and_page(app):
    state = told(app, "GET", "/api/state")
    assert state["version"] == crfield.__version__
    assert [s["name"] for s in state["samples"]] == ["astronaut", "camera", "coffee"]
    assert len(state["palette"]) == state["max_labels"] == 32
    assert state["defaults"]["bilateral"] == [40.0, 10.0]
    status, headers, page = ask(app, "GET", "/", headers={})
    assert status == 200
    assert b"<html" in page
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]


def test_refinement_equals_the_library(app):
    key, image, scribbles = opened(app)
    report, planes, progress = refined(app, key, scribbles, n_labels=2, max_iter=6, tol=0.0)
    unary = crfield.unary_from_scribbles(image, scribbles, 2)
    result = crfield.refinement.potts_model(2, 3.0, 3.0, (40.0, 10.0), 6.0).infer(
        image, unary, max_iter=6, tol=0.0
    )
    assert np.array_equal(planes[0], result.labels)
    assert np.array_equal(planes[1], unary.argmin(-1))
    assert report["free_energies"] == pytest.approx(result.free_energies.tolist())
    assert [step["iteration"] for step in progress] == [1, 2, 3, 4, 5, 6]
    assert len(report["milliseconds"]["steps"]) == 6
    assert sum(report["counts"]) == scribbles.size
    q = result.marginals.astype(np.float64)
    entropy = -(q * np.log(np.maximum(q, 1e-30))).sum(-1) / np.log(2)
    assert np.abs(planes[2] / 255 - entropy).max() < 0.01


def test_saved_files_and_script_make_the_same_mask(app, mask_of_script):
    key, image, scribbles = opened(app)
    refined(app, key, scribbles, n_labels=2, algorithm="cccp", spatial=None, strength=0.25)
    painted = ask(app, "GET", f"/api/images/{key}/scribbles.png")[2]
    found = mask_of_script(key, image, **{"scribbles.png": painted})
    assert np.array_equal(found, picture(app, key, "mask.png"))
    assert picture(app, key, "overlay.png").shape[:2] == image.shape[:2]


def test_a_label_map_is_trusted_as_far_as_the_slider_says(app):
    key, image, scribbles = opened(app)
    values = np.random.default_rng(1).integers(0, 3, image.shape[:2], dtype=np.uint8)
    told(app, "POST", f"/api/images/{key}/initial?kind=labels&name=map.png", as_png(values))
    nothing = np.full_like(scribbles, 255)
    report, _, _ = refined(app, key, nothing, source="initial", confidence=0.6, max_iter=3)
    start = Settings()
    expected = crfield.refine(
        image, values, confidence=0.6, max_iter=3, spatial=start.spatial,
        bilateral=start.bilateral, bilateral_weight=start.bilateral_weight,
    )
    assert report["free_energies"] == pytest.approx(expected.free_energies.tolist())


def test_a_mask_of_0_and_255_has_two_labels(app, mask_of_script):
    key, image, scribbles = opened(app)
    values = np.zeros(image.shape[:2], np.uint8)
    values[20:60, 30:90] = 255
    path = f"/api/images/{key}/initial?kind=labels&name=map.png"
    assert told(app, "POST", path, as_png(values))["names"] == ["0", "255"]
    refined(app, key, np.full_like(scribbles, 255), source="initial", max_iter=2)
    mask = picture(app, key, "mask.png")
    assert set(np.unique(mask)) == {0, 255}
    assert np.array_equal(mask_of_script(key, image, **{"map.png": as_png(values)}), mask)


@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_start_from_a_segmentation(app, kind, mask_of_script):
    key, image, scribbles = opened(app)
    rng = np.random.default_rng(0)
    if kind == "labels":
        values = np.where(rng.random(image.shape[:2]) < 0.7, 3, 7).astype(np.uint8)
        values[:4] = 255
        name, data = "map.png", as_png(values)
    else:
        values = rng.dirichlet([1, 1], image.shape[:2]).astype(np.float32)
        name, data = "map.npy", npy(values)
    answer = told(app, "POST", f"/api/images/{key}/initial?kind={kind}&name={name}", data)
    assert answer["n_labels"] == 2
    assert answer["names"] == (["3", "7"] if kind == "labels" else ["0", "1"])
    _, planes, _ = refined(app, key, scribbles, source="initial", max_iter=5)
    mask = picture(app, key, "mask.png")
    assert np.array_equal(mask, np.array([3, 7])[planes[0]] if kind == "labels" else planes[0])
    assert (planes[0][scribbles == 1] == 1).all()
    files = {name: data, "scribbles.png": as_png(scribbles)}
    assert np.array_equal(mask_of_script(key, image, **files), mask)
    told(app, "DELETE", f"/api/images/{key}/initial")
    error = refused_work(app, key, scribbles, source="initial")
    assert "no segmentation to start from" in error


def in_bytes(tmp_path, write, name):
    write(tmp_path / name)
    return (tmp_path / name).read_bytes()


@pytest.mark.parametrize("form", ["first", "coarse", "logits", "pages", "nifti"])
def test_probabilities_as_they_come(app, form, tmp_path, mask_of_script):
    """In any form they give what they give as (H, W, labels), and so does the script."""
    key, image, scribbles = opened(app)
    p = np.random.default_rng(0).dirichlet([1, 1, 1], image.shape[:2]).astype(np.float32)
    first, kind, name = np.moveaxis(p, -1, 0), "probabilities", "values.npy"
    if form == "pages":
        tifffile = pytest.importorskip("tifffile")
        kind, name = "labels", "values.tif"  # which the page cannot tell by the name
        data = in_bytes(
            tmp_path, lambda path: tifffile.imwrite(path, first, photometric="minisblack"), name
        )
    elif form == "nifti":
        nibabel = pytest.importorskip("nibabel")
        kind, name = "labels", "values.nii.gz"
        voxels = nibabel.Nifti1Image(p.transpose(1, 0, 2)[:, :, None], np.eye(4))
        data = in_bytes(tmp_path, lambda path: nibabel.save(voxels, path), name)
    elif form == "logits":
        kind, data = "logits", npy(30 + np.log(p))
    else:
        p = p[::4, ::4] if form == "coarse" else p
        data = npy(np.moveaxis(p, -1, 0))
    path = f"/api/images/{key}/initial?kind={kind}&name={name}"
    answer = told(app, "POST", path, data)
    assert answer["kind"] == ("logits" if form == "logits" else "probabilities")
    settings = Settings()
    expected = crfield.refine(
        image, p, max_iter=3, spatial=settings.spatial, bilateral=settings.bilateral,
        bilateral_weight=settings.bilateral_weight,
    )
    nothing = np.full_like(scribbles, 255)
    report, _, _ = refined(app, key, nothing, source="initial", max_iter=3)
    assert report["free_energies"] == pytest.approx(expected.free_energies.tolist(), rel=1e-4)
    mask = picture(app, key, "mask.png")
    assert np.array_equal(mask_of_script(key, image, **{name: data}), mask)


def test_logits_are_asked_about_and_volumes_refused(app, tmp_path):
    key, image, _ = opened(app)
    scores = np.random.default_rng(0).uniform(0, 9, (*image.shape[:2], 3))
    path = f"/api/images/{key}/initial?kind=probabilities"
    assert "tick that scores are logits" in sentence(app, 422, "POST", path, npy(scores))
    tifffile = pytest.importorskip("tifffile")
    scan = np.zeros((3, 8, 9), np.uint8)
    data = in_bytes(tmp_path, lambda path: tifffile.imwrite(
        path, scan, photometric="minisblack"
    ), "scan.tif")
    assert "is a volume of 3 x 8 x 9" in sentence(app, 422, "POST", "/api/images", data)


@pytest.mark.parametrize(("kind", "data", "words"), [
    (None, as_png(np.zeros((500, 500), np.uint8)), "start the page with crfield app --max-pixels"),
    (None, npy(np.zeros((9, 9))), 'got an array; load it under "Start from"'),
    (None, struct.pack("<Q", 2) + b"{}", 'got a model; load it under "Learned model"'),
    ("labels", as_png(np.zeros((300, 400), np.uint8)), "it has 300 x 400 pixels, the image 100 x"),
    ("labels", npy(np.zeros((300, 400), np.uint8)), "it has 300 x 400 pixels, the image 100 x"),
    ("labels", as_png(np.zeros((30, 40), np.uint8)), "it has 30 x 40 pixels, the image 100 x 120;"),
    ("probabilities", npy(np.zeros((90, 80, 2))), "it has 90 x 80 x 2 values, the image 100 x"),
])
def test_files_that_do_not_fit_are_refused_in_the_words_of_the_page(app, kind, data, words):
    path = "/api/images"
    if kind is not None:
        path += f"/{opened(app)[0]}/initial?kind={kind}"
    text = sentence(app, 422, "POST", path, data)
    assert words in text
    assert "max_pixels" not in text


def test_learned_model(app, tmp_path, mask_of_script):
    key, image, scribbles = opened(app)
    model = crfield.DenseCRF(2, [
        crfield.Pairwise(crfield.Bilateral(20, 12), crfield.Symmetric([[0.0, 3.0], [3.0, 1.0]]))
    ])
    model.save(tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    answer = told(app, "POST", "/api/models", data)
    assert answer["n_labels"] == 2
    assert answer["max_iter"] is None
    assert "Bilateral" in answer["terms"][0]
    _, planes, _ = refined(app, key, scribbles, model=answer["id"])
    unary = crfield.unary_from_scribbles(image, scribbles, 2)
    expected = model.infer(image, unary, max_iter=Settings().max_iter)
    assert np.array_equal(planes[0], expected.labels)
    found = mask_of_script(key, image, **{"scribbles.png": as_png(scribbles)})
    assert np.array_equal(found, planes[0])
    error = refused_work(app, key, scribbles, n_labels=3, model=answer["id"])
    assert "the model has 2 labels" in error


def test_samples_come_with_scribbles(app):
    answer = told(app, "POST", "/api/samples/coffee")
    assert answer["scribbles"]
    assert answer["names"][3] == "cup"
    labels = picture(app, answer["id"], "scribbles.png")
    mask = load_sample("coffee").mask
    assert set(np.unique(labels)) == {0, 1, 2, 3, 4, 5, 255}
    assert (labels[labels < 255] == mask[labels < 255]).all()


def test_a_newer_request_ends_the_older(app):
    key, _, scribbles = opened(app)
    path = f"/api/images/{key}/refine"
    with connect(app) as connection:
        connection.request("POST", path, packed(scribbles, max_iter=400, tol=0.0), OWN)
        answer = connection.getresponse()
        first = answer.read(5)  # progress has begun
        assert first[0] == 1
        _, planes, _ = refined(app, key, scribbles, max_iter=2)
        *_, (kind, last) = frames(first + answer.read())
    assert kind == 3
    assert json.loads(last) == {"error": "cancelled", "cancelled": True}
    assert planes.shape == (3, *scribbles.shape)


def test_a_page_that_goes_away_cancels(app, monkeypatch):
    from crfield.app import refining
    from crfield.app.workspace import OpenImage

    key, image, scribbles = opened(app)
    cancelled = threading.Event()
    seen = []

    def progress(step):
        seen.append(step["iteration"])
        if len(seen) == 3:
            cancelled.set()

    settings = Settings(max_iter=300, tol=0.0)
    with pytest.raises(refining.CancelledError):
        refining.refine_image(
            OpenImage("photo", image), settings, scribbles, None, progress, cancelled
        )
    assert seen == [1, 2, 3]
    stopped = threading.Event()
    whole = refining.refine_image

    def watched(*arguments):
        try:
            return whole(*arguments)
        except refining.CancelledError:
            stopped.set()
            raise

    monkeypatch.setattr("crfield.app.routes.refine_image", watched)
    with connect(app) as connection:
        connection.request("POST", f"/api/images/{key}/refine",
                           packed(scribbles, max_iter=400, tol=0.0), OWN)
        with connection.getresponse() as answer:
            answer.read(5)
    assert stopped.wait(60)
    assert refined(app, key, scribbles, max_iter=1)[0]["n_iter"] == 1


@pytest.mark.parametrize("headers", [
    {"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Host": ""},
    {"Host": "127.0.0.1.evil.example"}, {"Host": "localhost@evil.example"},
    {"Host": "localhost:99999"}, {"Origin": "http://evil.example"}, {"Origin": "null"},
    {"Origin": "https://127.0.0.1"}, {"Sec-Fetch-Site": "cross-site"},
])
def test_foreign_pages_are_refused(app, headers):
    sentence(app, 403, "GET", "/api/state", headers={**OWN, **headers})
    sentence(app, 403, "POST", "/api/samples/coffee", headers={**OWN, **headers})


def test_own_origin_is_welcome_and_the_header_is_needed(app):
    told(app, "POST", "/api/samples/camera", headers={**OWN, "Origin": app.url})
    port = urlsplit(app.url).port
    told(app, "GET", "/api/state", headers={"Host": f"localhost:{port}"})
    assert "X-Crfield" in sentence(app, 403, "POST", "/api/samples/camera", headers={})
    assert "X-Crfield" in sentence(app, 403, "DELETE", "/api/images/x/initial", headers={})


@pytest.mark.parametrize("path", [
    "/static/../routes.py", "/static/%2e%2e/routes.py", "/static/..%2froutes.py", "/etc/passwd",
    "/static//etc/passwd", "/static/%00", "/api/images/../../etc/passwd/picture.png",
    "/api/images/%2e%2e%2f/mask.png", "/static/", "/api/", "/%ff",
])
def test_paths_lead_nowhere(app, path):
    assert sentence(app, 404, "GET", path)


def test_wrong_uploads(app):
    key = told(app, "POST", "/api/images", as_png(np.zeros((20, 30, 3), np.uint8)))["id"]
    noise = as_png(np.random.default_rng(0).integers(0, 255, (40, 50, 3)).astype(np.uint8))
    many = np.arange(600).reshape(20, 30).astype(np.uint8)
    initial = f"/api/images/{key}/initial"
    for path, body, words in (
        ("/api/images", b"", "no bytes"), ("/api/images", b"not an image", "the file"),
        ("/api/images", noise[: len(noise) // 2], "cut short"),
        ("/api/images", as_png(np.zeros((500, 500), np.uint8)), "200"),
        ("/api/images", npy(np.zeros((2, 3, 4), np.uint8)), " "),
        (f"{initial}?kind=labels", as_png(np.eye(5, dtype=np.uint8)), "image's size"),
        (f"{initial}?kind=labels", as_png(many), "2 to 32 labels"),
        (initial, b"x", "kind must be one of"),
        (f"{initial}?kind=probabilities", npy(np.array([{}])), " "),
    ):
        assert words in sentence(app, 422, "POST", path, body)
    assert "at most" in sentence(app, 413, "POST", "/api/images", bytes(2**20 + 1))
    text = sentence(app, 422, "POST", "/api/models", b"\x08" * 100)
    assert text.startswith("the model file is damaged")


@pytest.mark.parametrize(("settings", "words"), [
    ({"n_labels": 1}, "n_labels must be at least 2"), ({"n_labels": 10**30}, "n_labels"),
    ({"n_labels": "two"}, "whole number"), ({"spatial": -1}, "spatial must lie"),
    ({"spatial": "wide"}, "must be a number"), ({"bilateral": [1]}, "pair of widths"),
    ({"bilateral": [1, None]}, "must be a number"), ({"algorithm": "magic"}, "one of"),
    ({"max_iter": 10**9}, "max_iter"), ({"max_iter": True}, "max_iter"), ({"tol": 2}, "tol"),
    ({"strange": 1}, "strange"), ({"model": 7}, "id or null"), ({"strength": True}, "strength"),
    ({"confidence": 1}, "confidence"), ({"source": None}, "source"),
])
def test_wrong_settings(app, settings, words):
    key, _, scribbles = opened(app)
    if settings == {"max_iter": True}:  # a whole number to Python, and harmless
        refined(app, key, scribbles, **settings)
        return
    path = f"/api/images/{key}/refine"
    assert words in sentence(app, 422, "POST", path, packed(scribbles, **settings))


def test_wrong_requests_to_refine(app):
    key, _, scribbles = opened(app)
    path = f"/api/images/{key}/refine"
    for body, words in (
        (b"", "4 bytes"), (struct.pack("<I", 2**32 - 1) + b"{}", "of settings"),
        (struct.pack("<I", 99) + b"{}", "add up"), (packed(scribbles[1:]), "add up"),
        (framed(b"{no", scribbles.tobytes()), "JSON"),
        (framed(b"[" * 60_000, scribbles.tobytes()), " "),
        (packed(np.where(scribbles < 2, 9, 255)), "label 9"),
    ):
        assert words in sentence(app, 422, "POST", path, body)
    assert "not open" in sentence(app, 404, "POST", path, packed(scribbles, model="x"))
    assert "open it again" in sentence(app, 404, "POST", "/api/images/x/refine", packed(scribbles))
    assert "nothing is refined" in sentence(app, 404, "GET", f"/api/images/{key}/mask.png")
    assert sentence(app, 405, "GET", path)
    assert "two labels or more" in refused_work(app, key, np.full_like(scribbles, 255))


def test_old_images_make_room():
    limits = Limits(max_images=3, max_memory=10**5)
    with RunningApp(limits) as app:
        small = as_png(np.zeros((10, 10, 3), np.uint8))
        keys = [told(app, "POST", "/api/images", small)["id"] for _ in range(4)]
        sentence(app, 404, "GET", f"/api/images/{keys[0]}/picture.png")
        assert ask(app, "GET", f"/api/images/{keys[1]}/picture.png")[0] == 200
        told(app, "POST", "/api/images", as_png(np.zeros((80, 80, 3), np.uint8)))
        sentence(app, 404, "GET", f"/api/images/{keys[2]}/picture.png")
        # More than all may take together, but the newest always stays.
        large = told(app, "POST", "/api/images", as_png(np.zeros((200, 200, 3), np.uint8)))["id"]
        assert ask(app, "GET", f"/api/images/{large}/picture.png")[0] == 200


def test_the_largest_request_to_refine_is_taken(app):
    """As many pixels and bytes of settings as there may be."""
    key = told(app, "POST", "/api/images", as_png(np.zeros((400, 500), np.uint8)))["id"]
    scribbles = np.full((400, 500), 255, np.uint8)
    scribbles[0, :2] = 0, 1
    settings = json.dumps({"max_iter": 1}).encode().ljust(2**16)
    path = f"/api/images/{key}/refine"
    status, _, content = ask(app, "POST", path, framed(settings, scribbles.tobytes()))
    assert status == 200
    assert frames(content)[-1][0] == 2
    assert sentence(app, 413, "POST", path, framed(settings + b" ", scribbles.tobytes()))


def test_what_nobody_foresaw_is_not_told(app, monkeypatch, caplog):
    from crfield.app import routes

    def fail(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(routes, "decode_model", fail)
    text = sentence(app, 500, "POST", "/api/models", b"x")
    assert "secret" not in text
    assert "secret" in caplog.text


def spoken(app, head, *parts):
    """What bytes get that are sent as they are; nothing more is sent while the answer comes."""
    address = urlsplit(app.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        answer = b""
        try:
            for part in (head, *parts):
                connection.sendall(part)
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    return answer


def head_of(path, *lines):
    rows = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "X-Crfield: 1", "Connection: close", *lines]
    return ("\r\n".join(rows) + "\r\n\r\n").encode()


def test_bodies_without_a_length_are_counted(app):
    chunk = b"10000\r\n" + bytes(2**16) + b"\r\n"
    answer = spoken(app, head_of("/api/images", "Transfer-Encoding: chunked"), *[chunk] * 20)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"Traceback" not in answer


def test_two_hosts_are_one_too_many(app):
    assert spoken(app, head_of("/api/samples/camera", "Host: 127.0.0.1")).startswith(
        (b"HTTP/1.1 403", b"HTTP/1.1 400")
    )


def test_uploads_that_unpack_to_more_than_the_image(app):
    key, image, _ = opened(app)
    path = f"/api/images/{key}/initial?kind=probabilities"
    for shape, words in (((500, 390, 32), "it has more pixels"), ((*image.shape[:2], 40), "32")):
        stream = io.BytesIO()
        np.savez_compressed(stream, probs=np.zeros(shape, np.float32))
        assert words in sentence(app, 422, "POST", path, stream.getvalue())


def test_ids_that_do_not_fit_into_a_byte(app, mask_of_script):
    key, image, scribbles = opened(app)
    values = np.where(np.arange(image.shape[1])[None] < 50, 300, 5000)
    values = np.broadcast_to(values, image.shape[:2]).astype(np.int64)
    for ids in ((300, 5000), (-1, 3), (2, 70000)):
        labels = np.where(values == 300, ids[0], ids[1])
        path = f"/api/images/{key}/initial?kind=labels&name=map.npy"
        answer = told(app, "POST", path, npy(labels))
        assert answer["names"] == [str(i) for i in ids]
        refined(app, key, scribbles, source="initial", max_iter=2)
        mask = picture(app, key, "mask.png")
        fits = ids[0] >= 0 and ids[1] < 2**16
        assert set(np.unique(mask)) == (set(ids) if fits else {0, 1})
        files = {"map.npy": npy(labels), "scribbles.png": as_png(scribbles)}
        assert np.array_equal(mask_of_script(key, image, **files), mask)
    huge = np.where(values == 300, 0, 2**63 + 5).astype(np.uint64)
    path = f"/api/images/{key}/initial?kind=labels"
    assert "below 2**63" in sentence(app, 422, "POST", path, npy(huge))


def test_one_row_of_probabilities_is_no_batch(app):
    key, _, scribbles = opened(app)
    path = f"/api/images/{key}/initial?kind=probabilities&name=p.npy"
    assert told(app, "POST", path, npy(np.array([[[0.3, 0.7]]])))["n_labels"] == 2
    _, planes, _ = refined(app, key, np.full_like(scribbles, 255), source="initial", max_iter=1)
    assert (planes[0] == 1).all()


def test_a_lossy_label_map_is_refused(app):
    key, image, _ = opened(app)
    stream = io.BytesIO()
    Image.fromarray(np.zeros(image.shape[:2], np.uint8)).save(stream, "JPEG")
    path = f"/api/images/{key}/initial?kind=labels&name=map.jpg"
    assert "lossless" in sentence(app, 422, "POST", path, stream.getvalue())


def test_old_models_make_room(tmp_path):
    crfield.DenseCRF(2, []).save(tmp_path / "model")
    data = (tmp_path / "model").read_bytes()
    with RunningApp(Limits(max_models=2)) as app:
        keys = [told(app, "POST", "/api/models", data)["id"] for _ in range(3)]
        key, _, scribbles = opened(app)
        path = f"/api/images/{key}/refine"
        body = packed(scribbles, model=keys[0])
        assert "model is not open" in sentence(app, 404, "POST", path, body)
        refined(app, key, scribbles, model=keys[2])


def test_the_pages_colors_of_entropy_are_those_of_the_library():
    text = (resources.files("crfield.app") / "static" / "compose.js").read_text("utf-8")
    listed = re.search(r"const RAMP = (\[.*?\]);", text, re.S)
    ramp = np.array(ast.literal_eval(listed[1]))
    places = np.linspace(0, 255, len(ramp)).round().astype(int)
    assert np.abs(uncertainty_ramp()[places].astype(int) - ramp).max() <= 2


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "LOCALHOST:80"])
def test_every_name_of_this_machine(app, host):
    told(app, "GET", "/api/state", headers={"Host": host})


@pytest.mark.parametrize(("arguments", "words"), [
    ({"host": "0.0.0.0"}, "loopback"), ({"host": "example.com"}, "address of this machine"),
    ({"host": "::"}, "loopback"), ({"port": -1}, "port"), ({"port": 70000}, "port"),
])
def test_only_this_machine(arguments, words):
    assert words in refusal(serve, **{"port": 0, **arguments})


def test_a_port_in_use(app, capsys):
    from crfield.cli import main

    port = str(urlsplit(app.url).port)
    assert main(["app", "--no-browser", "--port", port]) == 2
    assert "choose another with --port" in capsys.readouterr().err
