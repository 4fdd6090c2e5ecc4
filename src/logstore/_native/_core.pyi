"""The compiled core, as cffi makes it from logstore.h; typed wrappers are in the sibling modules."""

from typing import Any

ffi: Any
lib: Any
