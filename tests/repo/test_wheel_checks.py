"""What `make wheels` refuses: builds that differ, files that are missing or stray, large wheels."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import wheel_checks as checks

ROOT = Path(__file__).resolve().parents[2]

SOURCES = {"crfield/__init__.py": b"x = 1", "crfield/app/static/page.html": b"<p>"}
COMPILED = {"crfield/_core/_native.abi3.so": b"\x7fELF"}


def wheel(folder, files, name="crfield-1.0-cp312-abi3-linux_x86_64.whl"):
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in (files | {"crfield-1.0.dist-info/RECORD": b""}).items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return folder / name


def sdist(folder, files):
    with tarfile.open(folder / "crfield-1.0.tar.gz", "w:gz") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(f"crfield-1.0/src/{path}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return folder / "crfield-1.0.tar.gz"


def test_the_files_of_the_sdist_and_one_compiled_module(tmp_path):
    source = sdist(tmp_path, SOURCES)
    checks.check_contents(wheel(tmp_path, SOURCES | COMPILED), source)


@pytest.mark.parametrize(("files", "told"), [
    (SOURCES, "compiled"),
    (COMPILED | {"crfield/__init__.py": b"x = 1"}, "page.html"),
    (SOURCES | COMPILED | {"crfield/notes.txt": b""}, "notes.txt"),
    (SOURCES | COMPILED | {"crfield/_core/_native.cpython-311.so": b""}, "cpython-311"),
    (SOURCES | COMPILED | {"tests/test_x.py": b""}, "test_x"),
])
def test_other_contents_are_refused(tmp_path, files, told):
    with pytest.raises(SystemExit, match=told):
        checks.check_contents(wheel(tmp_path, files), sdist(tmp_path, SOURCES))


def test_builds_that_differ_are_refused_with_what_differs(tmp_path, capsys):
    first = wheel(tmp_path / "a", SOURCES)
    checks.check_same(first, wheel(tmp_path / "b", SOURCES))
    assert "same bytes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"__init__\.py$"):
        checks.check_same(first, wheel(tmp_path / "c", SOURCES | {"crfield/__init__.py": b"x"}))
    with pytest.raises(SystemExit, match="order or headers"):
        checks.check_same(first, wheel(tmp_path / "d", dict(reversed(SOURCES.items()))))


def test_large_wheels_are_refused(tmp_path):
    checks.check_size(wheel(tmp_path, SOURCES))
    with pytest.raises(SystemExit, match="5 MB"):
        checks.check_size(wheel(tmp_path, {"crfield/large": bytes(5_100_000)}))


def test_the_version_is_the_same_everywhere():
    version = (ROOT / "src/crfield/__init__.py").read_text("utf-8").split('__version__ = "')[1]
    version = version.split('"')[0]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text("utf-8")
