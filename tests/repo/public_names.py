"""What the package exports: the modules with public names, and these names."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import crfield


def public_modules():
    """Names of the modules that export something, but those in the words of pydensecrf."""
    folder = str(Path(crfield.__file__).parent)
    found = {"crfield", "crfield.learning.losses", "crfield.metrics", "crfield.show.pictures"}
    for module in pkgutil.walk_packages([folder], "crfield."):
        parts = module.name.split(".")
        if module.name.startswith("crfield.compat") or any(part[0] == "_" for part in parts):
            continue
        path = Path(module.module_finder.path, parts[-1])
        file = path / "__init__.py" if module.ispkg else path.with_suffix(".py")
        if "\n__all__ = " in file.read_text("utf-8"):
            found.add(module.name)
    return sorted(found)


def load(name):
    """A public module; the test is skipped where what it needs is missing."""
    if name.startswith("crfield.nn"):
        pytest.importorskip("torch")
    return importlib.import_module(name)


def exported(module):
    """The public classes and functions of a module by name."""
    names = getattr(module, "__all__", None)
    if names is None:
        own = module.__name__
        names = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == own]
    for name in names:
        value = getattr(module, name)
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isroutine(value)):
            yield name, value
