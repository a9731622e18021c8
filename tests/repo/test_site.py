"""What turns docs/ into a site: equations, links that leave it, docstrings, options, coverage."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import crfield
from public_names import load, public_modules

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))


def load_hook(name, *needed):
    for package in needed:
        pytest.importorskip(package, reason=f"the site needs {package}")
    return importlib.import_module(f"docs_tools.{name}")


@pytest.fixture
def mathml():
    return load_hook("mathml", "mkdocs", "latex2mathml")


def page(uri="page.md"):
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri))


def test_equations_become_mathml(mathml):
    html = '<p><span class="arithmatex">a &lt; \\log b</span></p><div class="arithmatex">x</div>'
    shown = mathml.on_page_content(html, page())
    assert "arithmatex" not in shown
    assert shown.count("<math ") == 2
    assert 'display="inline"' in shown
    assert '<div class="equation"><math' in shown
    assert '<mi>log</mi><mspace width="0.17em"/><mi>b</mi>' in shown


@pytest.mark.parametrize("tex", [r"\begin{aligned} a &= b \end{aligned}", r"\nosuchcommand x"])
def test_equations_that_would_show_wrong_stop_the_build(mathml, tex):
    with pytest.raises(mathml.PluginError, match=r"page\.md"):
        mathml.on_page_content(f'<span class="arithmatex">{tex}</span>', page())


def test_every_equation_of_the_pages_has_mathml(mathml):
    found = 0
    for path in DOCS.glob("*.md"):
        prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.M | re.S)
        for tex in re.findall(r"\$\$(.+?)\$\$|(?<![\\$])\$(?=\S)([^$\n]+?)(?<=\S)\$", prose, re.S):
            html = f'<span class="arithmatex">{"".join(tex)}</span>'
            assert "<math" in mathml.on_page_content(html, page(path.name))
            found += 1
    assert found > 50


def test_links_out_of_the_site_become_names_of_files():
    links = load_hook("outside_links", "mkdocs")
    config = SimpleNamespace(docs_dir=str(DOCS))
    text = "[tables](../experiments/README.md#x), [README.md](../README.md), [start](start.md)"
    assert links.on_page_markdown(text, page(), config) == (
        "tables (`experiments/README.md`), `README.md`, [start](start.md)"
    )
    inside = "[kernels](../kernels.md)"
    assert links.on_page_markdown(inside, page("reference/x.md"), config) == inside
    with pytest.raises(links.PluginError, match="does not exist"):
        links.on_page_markdown("[lost](../no/such/file.md)", page(), config)


def test_docstrings_as_markdown():
    hook = load_hook("docstrings", "griffe")
    shown = hook.to_markdown(
        """One line with (*grid, L) and `a_b`.

            e = u + K q

        Parameters
        ----------
        image, mask : (*grid), what
            it is.
        other
            below its name.
        The rest as in `infer`.

        Examples
        --------
        >>> refine(image)  # doctest: +SKIP
        1
        """
    )
    assert "(\\*grid, L) and `a_b`." in shown
    assert "\n    e = u + K q\n" in shown
    assert "**Parameters**\n\n\n- `image`, `mask`: (\\*grid), what\n    it is." in shown
    assert "- `other`:\n    below its name.\n\nThe rest as in `infer`." in shown
    assert "```pycon\n>>> refine(image)\n1\n```" in shown
    links = {"learn": "crfield.learning.learner.learn"}
    linked = hook.to_markdown("As in `learn`, with `x`.", links)
    assert linked == "As in [`learn`][crfield.learning.learner.learn], with `x`."


def test_options_on_the_page_are_those_of_the_parser():
    done = subprocess.run(
        [sys.executable, "-m", "docs_tools.command_line_page", "--check"], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(set(crfield.__all__)))
def test_every_public_name_is_in_the_reference(name):
    assert re.search(rf"^::: crfield\.{name}$", REFERENCE, re.M)


@pytest.mark.parametrize("module", [
    "app", "datasets", "dense.filters", "learning.losses", "graphcut", "graphs", "learning",
    "metrics", "nn", "patterns", "show.pictures",
])
def test_every_public_module_is_in_the_reference(module):
    assert re.search(rf"^::: crfield\.{module}$", REFERENCE, re.M)
    assert importlib.util.find_spec(f"crfield.{module}") is not None


@pytest.mark.parametrize("module", public_modules())
def test_every_exported_name_is_on_a_page(module):
    """Written there, or a member of a module whose members the reference shows."""
    own = load(module)
    pages = REFERENCE + "\n".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    shown = [
        importlib.import_module(name) for name in public_modules()
        if re.search(rf"^::: {re.escape(name)}$", REFERENCE, re.M)
        and (not name.startswith("crfield.nn") or importlib.util.find_spec("torch"))
    ]
    for name in getattr(own, "__all__", ()):
        is_shown = any(getattr(room, name, None) is getattr(own, name) for room in shown)
        assert is_shown or re.search(rf"\b{name}\b", pages), name


def test_pages_and_navigation_are_the_same():
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
