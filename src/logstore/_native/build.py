"""
Build description of the native core: what cffi compiles, from which sources, with which flags.

``logstore.h`` is both the C header and, between its two markers, the cffi declarations.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

HEADER = (HERE / "logstore.h").read_text(encoding="utf-8")
CDEF = HEADER.split("/* CDEF-BEGIN */", 1)[1].split("/* CDEF-END */", 1)[0]

DEBUG = os.environ.get("LOGSTORE_DEBUG") == "1"
SANITIZE = os.environ.get("LOGSTORE_SANITIZE") == "1"

compile_args = ["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow"]
link_args: list[str] = ["-pthread"]
if os.environ.get("LOGSTORE_WERROR") == "1":
    compile_args += ["-Werror"]
if DEBUG or SANITIZE:
    compile_args += ["-UNDEBUG", "-O1", "-g"]
if SANITIZE:
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    compile_args += [*sanitizers, "-fno-omit-frame-pointer"]
    link_args += sanitizers

# The limited API does not exist on a free-threaded build.
limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
macros: list[tuple[str, str | None]] = [("_GNU_SOURCE", None)]
if limited_api:
    macros.append(("Py_LIMITED_API", "0x030b0000"))

ffi = FFI()
ffi.cdef(CDEF)
ffi.set_source(
    "logstore._native._core",
    '#include "logstore.h"\n',
    sources=sorted(str(path.relative_to(ROOT)) for path in HERE.glob("ls_*.c")),
    depends=sorted(str(path.relative_to(ROOT)) for path in HERE.glob("*.h")),
    include_dirs=[str(HERE.relative_to(ROOT))],
    define_macros=macros,
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    py_limited_api=limited_api,
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffi.compile(verbose=True, tmpdir=str(ROOT / "src"))
    sys.exit(0)
