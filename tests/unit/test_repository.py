"""The checkout itself: what must not be committed, and what the metadata promises."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="rules", scope="module")
def _rules():
    if subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    spec = importlib.util.spec_from_file_location(
        "check_repository", ROOT / "scripts/check_repository.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="metadata", scope="module")
def _metadata():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_nothing_is_committed_that_must_not_be(rules):
    """No path of one machine, no host of a registry, no loose end, no large file or module."""
    assert [] == [line for path in rules.tracked_files() for line in rules.findings(path)]


def test_each_decision_has_a_number_of_its_own(rules):
    assert [] == rules.repeated_numbers()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("see /{}/someone/x".format("home"), "path of one machine"),
        ("from {}.org/simple".format("pypi"), "host of a registry"),
        ("pip install -U {}".format("logstore"), "another project's name on the index"),
        ("x = 1  # TO{}".format("DO"), "loose end"),
    ],
)
def test_each_rule_finds_what_it_names(rules, line, what):
    """A rule that never matches would pass everything."""
    assert [what] == [name for name, pattern in rules.RULES.items() if pattern.search(line)]


def test_distribution_is_named_in_one_place(rules, metadata):
    """Only pyproject.toml says what the distribution is called; prose may mention it."""
    name = metadata["project"]["name"]
    naming = [
        path.as_posix()
        for path in rules.tracked_files()
        if path.suffix in {".py", ".sh", ".c", ".h", ".toml", ".yaml", ".txt", ".in", ""}
        and name in (rules.text_of(path) or "")
    ]
    assert ["pyproject.toml"] == naming


def test_extras_that_contain_others_repeat_their_ranges(metadata):
    """`spark-local` is `spark` and more, with the same ranges; `spark` brings no pyspark."""
    extras = metadata["project"]["optional-dependencies"]
    assert set(extras["spark"]) <= set(extras["spark-local"])
    assert not any(requirement.startswith("pyspark") for requirement in extras["spark"])
    assert set(extras["arrow"]) <= set(extras["spark"])


def test_lock_has_a_hash_for_every_pin_and_pins_every_range(metadata):
    """The lock covers the dependencies, and the extras that tests and tools need."""
    lock = (ROOT / "requirements/lock.txt").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", lock.strip())
    assert [] == [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry]

    pinned = {re.match(r"[\w-]+", entry).group().lower() for entry in entries}
    extras = metadata["project"]["optional-dependencies"]
    wanted = [*metadata["project"]["dependencies"], *metadata["build-system"]["requires"]]
    for extra in ("arrow", "cli", "metrics", "test", "dev"):
        wanted += extras[extra]
    assert set() == {re.match(r"[\w-]+", range_).group().lower() for range_ in wanted} - pinned
