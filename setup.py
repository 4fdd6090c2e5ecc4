"""The two things that pyproject.toml cannot say: the cffi extension and the abi3 wheel tag."""

import sysconfig

from setuptools import setup

options = {}
if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    options["bdist_wheel"] = {"py_limited_api": "cp311"}

setup(cffi_modules=["src/logstore/_native/build.py:ffi"], options=options)
