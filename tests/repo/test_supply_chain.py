"""Where what we install and publish comes from: actions, dependencies, hashes, addresses."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What a job may write; all others read.
WRITES = {"publish": {"id-token", "attestations"}, "release": {"contents"}}
LOCKS = {"test": ("build", "test", "lint", "release"), "publish": ("publish",)}
# What CI installs besides the locks: PyTorch, and what is tried where it builds.
WITHOUT_HASHES = {"atheris", "torch", "triton"}
PINNED = re.compile(r"- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def normal(name):
    """A package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements):
    return {normal(re.match(r"[\w.-]+", text)[0]) for text in requirements}


def in_group(project, group):
    """The requirements of a group, those that it includes among them."""
    found = []
    for item in project["dependency-groups"][group]:
        found += in_group(project, item["include-group"]) if isinstance(item, dict) else [item]
    return found


def constraints():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def locked(name):
    """Versions and numbers of hashes by package of a lock; a package may have several versions."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text("utf-8")
    found = {}
    for block in re.split(r"\n(?=[a-z0-9])", text):
        if match := re.match(r"([\w.-]+)==([\w.]+)", block):
            hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block)
            found.setdefault(normal(match[1]), []).append((match[2], len(hashes)))
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_may_read_only(path):
    yaml = pytest.importorskip("yaml")
    text = path.read_text("utf-8")
    uses = [line.strip() for line in text.splitlines() if "uses:" in line]
    assert uses
    assert [line for line in uses if not PINNED.fullmatch(line)] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        wider = {k for k, v in job.get("permissions", {}).items() if v != "read"}
        assert wider == WRITES.get(name, set())
        assert all(
            step["with"]["persist-credentials"] is False for step in job["steps"]
            if step.get("uses", "").startswith("actions/checkout@")
        )


def test_an_action_has_one_version():
    every = re.findall(r"uses: (\S+)@(\S+)", "".join(p.read_text("utf-8") for p in WORKFLOWS))
    assert len({name for name, _ in every}) == len(set(every))


def test_publishing_needs_no_token_and_attests():
    yaml = pytest.importorskip("yaml")
    (path,) = (path for path in WORKFLOWS if path.stem == "wheels")
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    publish = jobs["publish"]
    for name in WRITES:
        assert set(jobs[name]["needs"]) == set(jobs) - set(WRITES)
        assert jobs[name]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    last = publish["steps"][-1]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert last["with"] == {"attestations": True}
    assert any("attest-sbom@" in step.get("uses", "") for step in publish["steps"])
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    installs = [line for line in commands if "pip install" in line]
    own = "installed/bin/python"  # gets what a user of the wheel gets
    assert all("--require-hashes" in line or line.startswith(own) for line in installs)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_everything_with_hashes_in_the_versions_of_the_constraints(name, project):
    found, pinned = locked(name), constraints()
    wanted = names_of(project["project"]["dependencies"])
    wanted |= {n for group in LOCKS[name] for n in names_of(in_group(project, group))}
    assert wanted <= set(found)
    assert all(hashes > 0 for versions in found.values() for _, hashes in versions)
    differing = {
        n: versions for n, versions in found.items()
        if n in pinned and {version for version, _ in versions} != {pinned[n]}
    }
    assert differing == {}, "run `make lock`"
    text = (ROOT / "requirements" / f"{name}.lock").read_text("utf-8")
    assert "://" not in text
    assert "-index" not in text


def test_every_constraint_is_locked():
    assert set(constraints()) - set(locked("test")) - set(locked("publish")) == WITHOUT_HASHES


def test_ci_installs_the_lock_before_anything_else():
    lines = (ROOT / ".ci" / "run").read_text("utf-8")
    install = lines.index('--require-hashes -r "$CRFIELD_LOCK"')
    assert 'CRFIELD_LOCK="$PWD/requirements/test.lock"' in lines[:install]
    assert "make " not in lines[:install].split("set -euo pipefail")[1]


def test_build_dependencies_have_bounds(project):
    build = project["build-system"]["requires"]
    in_environment = {n for n in in_group(project, "build") if not n.startswith("pip")}
    assert set(build) <= in_environment
    assert all(re.search(r">=[\d.]+,<\d+$", text) for text in in_environment)


def test_the_project_says_where_it_is_and_how_to_report(project):
    urls = project["project"]["urls"]
    assert urls["Homepage"] == f"https://pypi.org/project/{project['project']['name']}/"
    assert all(url.startswith("https://") for url in urls.values())
    policy = (ROOT / "SECURITY.md").read_text("utf-8")
    assert "(docs/security.md)" in policy
    assert "Report a\nvulnerability" in policy
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(SECURITY.md)" in (ROOT / page).read_text("utf-8"), page
