"""The public surface: `logstore.__all__`, documented name by name."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
import typing

import pytest

import logstore

PUBLIC = getattr(logstore, "__all__", [])


def test_all_is_sorted_and_without_repetition():
    """The list reads as an index."""
    assert sorted(set(PUBLIC)) == list(PUBLIC)


def test_nothing_public_is_missing_from_all():
    """A name without underscore is public or is not there; submodules do not count."""
    names = {
        name
        for name, value in vars(logstore).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name != "annotations"
    }
    assert names <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_exists_and_is_documented(name):
    """Each name has a docstring of its own; an alias of types says what it is by itself."""
    value = getattr(logstore, name)
    assert typing.get_origin(value) or inspect.getdoc(value)


def public_members():
    for name in PUBLIC:
        value = getattr(logstore, name)
        if not inspect.isclass(value):
            continue
        for member, attribute in vars(value).items():
            function = getattr(attribute, "__func__", attribute)
            documented = isinstance(
                function, types.FunctionType | property | types.MethodDescriptorType
            )
            if documented and not member.startswith("_"):
                yield pytest.param(f"{name}.{member}", attribute, id=f"{name}.{member}")


@pytest.mark.parametrize(("name", "attribute"), list(public_members()))
def test_public_member_is_documented(name, attribute):
    """Methods and properties of public classes have docstrings too; inherited ones count."""
    owner, member = name.split(".")
    assert inspect.getdoc(getattr(getattr(logstore, owner), member)) or inspect.getdoc(attribute)


@pytest.mark.parametrize("module", ["pyarrow", "rich", "prometheus_client", "pyspark", "pytest"])
def test_import_does_not_load_what_is_optional(module):
    """`import logstore` costs what the core needs, nothing else."""
    code = f"import logstore, sys; sys.exit({module!r} in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
