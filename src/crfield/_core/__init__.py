"""What every room builds on: checks, threads, memory, optimizers and the compiled core."""

import importlib
import sys

# Neither NumPy nor the compiled core can be loaded a second time in a process; what they say when
# it is tried does not tell why. The module is private and has another name in each Python.
_NAME = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
try:
    _interpreters = importlib.import_module(_NAME)
except ImportError:  # a Python without subinterpreters
    pass
else:
    if _interpreters.get_current() != _interpreters.get_main():
        raise ImportError(
            "crfield must be imported in the main interpreter, got a subinterpreter, where NumPy "
            "and its compiled core cannot be loaded; use threads or processes instead."
        )
