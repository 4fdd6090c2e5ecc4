"""The two things that pyproject.toml cannot say: the cffi extension and the abi3 wheel tag."""

import sysconfig

from setuptools import setup

# The limited API, and with it the one wheel for all versions, is missing from free-threaded builds.
limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    cffi_modules=["native_build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if limited_api else {},
)
