"""
Build description of the native core: what cffi compiles, from which sources, with which flags.

``logstore.h`` is both the C header and, between its two markers, the cffi declarations.

Environment:
    LOGSTORE_WERROR=1: Warnings are errors, and conversions are warned about.
    LOGSTORE_DEBUG=1: C assertions are on (CPython's own flags turn them off).
    LOGSTORE_SANITIZE=1: The same, with AddressSanitizer and UndefinedBehaviorSanitizer.
    LOGSTORE_PORTABLE=1: No instruction beyond the baseline and no system call beyond POSIX.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from cffi import FFI

NATIVE = Path("src/logstore/_native")  # Relative to this file's directory, where setup.py runs.
HERE = Path(__file__).resolve().parent

HEADER = (HERE / NATIVE / "logstore.h").read_text(encoding="utf-8")
CDEF = HEADER.split("/* CDEF-BEGIN */", 1)[1].split("/* CDEF-END */", 1)[0]

# The limited API is missing from a free-threaded build: the same source compiles without it.
LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")

compile_args = ["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow"]
link_args = ["-pthread"]
if os.environ.get("LOGSTORE_WERROR") == "1":
    compile_args += ["-Werror"]
if "1" in {os.environ.get("LOGSTORE_DEBUG"), os.environ.get("LOGSTORE_SANITIZE")}:
    compile_args += ["-UNDEBUG", "-O1", "-g"]
if os.environ.get("LOGSTORE_SANITIZE") == "1":
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    compile_args += [*sanitizers, "-fno-omit-frame-pointer"]
    link_args += sanitizers

macros: list[tuple[str, str | None]] = [("_GNU_SOURCE", None)]
if os.environ.get("LOGSTORE_PORTABLE") == "1":
    macros.append(("LS_PORTABLE", None))
if LIMITED_API:
    macros.append(("Py_LIMITED_API", "0x030b0000"))

ffi = FFI()
ffi.cdef(CDEF)
ffi.set_source(
    "logstore._native._core",
    '#include "logstore.h"\n',
    sources=sorted(str(NATIVE / path.name) for path in (HERE / NATIVE).glob("ls_*.c")),
    depends=sorted(str(NATIVE / path.name) for path in (HERE / NATIVE).glob("*.h")),
    include_dirs=[str(NATIVE)],
    define_macros=macros,
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    py_limited_api=LIMITED_API,
)
