"""The compiled core, as cffi makes it from logstore.h; its wrappers are the sibling modules."""

from typing import Any

ffi: Any
lib: Any
