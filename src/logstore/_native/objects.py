"""Types and functions in C that cffi cannot make; the modules beside this one wrap them."""

from __future__ import annotations

from typing import Any

from logstore._native._core import lib

_slot: list[Any] = [None]
if lib.ls_py_module(id(_slot)) != 0:  # The cause was printed: cffi cannot pass it on.
    raise ImportError("the native module could not make its types; rebuild the extension")
objects: Any = _slot.pop()
