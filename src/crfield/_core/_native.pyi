# The compiled core; `native/bindings*.cpp` has the signatures.
from typing import Any

def __getattr__(name: str) -> Any: ...
