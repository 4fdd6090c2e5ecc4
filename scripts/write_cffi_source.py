"""
Write the C source that cffi makes for a free-threaded Python, which has no limited API.

    python scripts/write_cffi_source.py PATH
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Generate with the build description of a free-threaded interpreter, whatever runs this."""
    sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1
    sys.path.insert(0, str(ROOT))
    import native_build  # noqa: PLC0415 - After the variable that it reads.

    assert not native_build.LIMITED_API
    native_build.ffi.emit_c_code(sys.argv[1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
