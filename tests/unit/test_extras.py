"""A missing optional dependency is an error that names its extra."""

from __future__ import annotations

import pickle
import sys
import tomllib
from pathlib import Path

import pytest

from logstore.errors import MissingExtraError
from logstore.extras import EXTRA_OF, import_extra

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.mark.parametrize(("module", "extra"), EXTRA_OF.items())
def test_missing_module_names_its_extra(monkeypatch, module, extra):
    """The message and the field say what to install, and the error survives pickling."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"\[{extra}\]") as caught:
        import_extra(module)
    assert extra == caught.value.extra
    assert isinstance(caught.value, ImportError)
    assert extra == pickle.loads(pickle.dumps(caught.value)).extra


def test_broken_module_keeps_its_own_error(monkeypatch, tmp_path):
    """What fails inside an installed module is not taken for a missing extra."""
    (tmp_path / "rich.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rich", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        import_extra("rich")


def test_every_extra_named_is_an_extra_of_the_distribution():
    """The table agrees with the metadata."""
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    for module, extra in EXTRA_OF.items():
        name = {"google": "protobuf"}.get(module, module.replace("_", "-"))
        assert any(range_.startswith(name) for range_ in extras[extra])
