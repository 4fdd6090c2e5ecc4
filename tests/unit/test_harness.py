"""The benchmark harness: rounds, ratios, verdicts."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks.harness import (
    Contest,
    InTurns,
    Line,
    Outcome,
    Spread,
    Target,
    Variant,
    judge,
    quantile,
    run_contest,
    table,
    throw_away_disturbed_rounds,
)

pytestmark = pytest.mark.repository
MORE = Target("path", "fast", "slow", floor=1.5, ambition=3.0, unit="S")
LESS = Target("path", "slow", "fast", floor=1.5, ambition=1.0, at_most=True)


def variant(name, *figures, amount=1.0):
    """Return a variant whose runs cost the given figures, the first in the warm-up round."""
    costs = iter(figures)
    return Variant(name, lambda _: next(costs), amount=amount)


def outcome(fast, slow, targets=(MORE,)):
    """Return the outcome of a contest with these costs."""
    contest = Contest("c", (Variant("fast", None), Variant("slow", None)), targets)
    return Outcome(contest, {"fast": list(fast), "slow": list(slow)})


class TestRunContest:
    def test_warm_up_round_does_not_count(self):
        """The first figure of each variant is dropped."""
        contest = Contest(
            "c", (variant("fast", 9, 1, 1), variant("slow", 9, 2, 2)), (MORE,), rounds=2
        )
        assert {"fast": [1, 1], "slow": [2, 2]} == run_contest(contest).seconds

    def test_closes_the_contest_when_a_variant_fails(self):
        """What a contest holds open is closed, whatever happens."""
        closed = []
        broken = Variant("fast", lambda _: 1 / 0)
        contest = Contest("c", (broken,), (), close=lambda: closed.append(True))
        with pytest.raises(ZeroDivisionError):
            run_contest(contest)
        assert [True] == closed

    def test_a_variant_that_runs_nothing_in_the_watch_is_refused(self):
        """A forgotten watch would be infinitely fast."""
        with pytest.raises(AssertionError, match="ran nothing"):
            run_contest(Contest("c", (Variant("fast", lambda _: None),), ()))

    def test_watch_measures_its_blocks(self):
        """The time inside the blocks is the cost."""

        def run(watch):
            with watch.running():
                sum(range(10_000))

        result = run_contest(Contest("c", (Variant("fast", run),), ()), rounds=1)
        assert 0 < result.seconds["fast"][0] < 1


class TestRatios:
    def test_ratio_is_taken_within_the_round(self):
        """Each round is compared with its own yardstick."""
        assert [2.0, 4.0] == outcome([1, 1], [2, 4]).ratios(MORE)

    def test_amounts_count(self):
        """Rates are compared, not times: twice the work in the same time is twice as fast."""
        contest = Contest("c", (Variant("fast", None, amount=2), Variant("slow", None)), (MORE,))
        assert [2.0] == Outcome(contest, {"fast": [1.0], "slow": [1.0]}).ratios(MORE)

    def test_at_most_compares_times(self):
        """Where less is better, the ratio is of times."""
        assert [2.0] == outcome([1], [2], (LESS,)).ratios(LESS)

    def test_without_yardstick_the_figure_stands_alone(self):
        """Milliseconds and megabytes are judged as they are."""
        target = Target("path", "fast", None, 5.0, 3.0, at_most=True)
        assert [4.0] == pytest.approx(outcome([4.0], [1.0], (target,)).ratios(target))

    def test_disturbed_round_is_thrown_away(self):
        """A round whose yardstick is far below its median says nothing about the variant."""
        figures = outcome([1, 1, 1], [2, 2, 20])
        throw_away_disturbed_rounds(figures)
        assert ({"fast": [1, 1], "slow": [2, 2]}, 1) == (
            figures.seconds,
            figures.rounds_thrown_away,
        )


class TestVerdict:
    @pytest.mark.parametrize(
        ("reached", "verdict"), [(3.0, "ambition"), (2.0, "floor"), (1.4, "below floor")]
    )
    def test_more_is_better(self, reached, verdict):
        """Rates have to reach their limit."""
        spread = Spread(reached, reached, reached)
        assert verdict == Line(MORE, spread, spread, "cpu", 1, 0).verdict

    @pytest.mark.parametrize(
        ("reached", "verdict"), [(1.0, "ambition"), (1.2, "floor"), (1.6, "below floor")]
    )
    def test_less_is_better(self, reached, verdict):
        """Times must not exceed it."""
        spread = Spread(reached, reached, reached)
        assert verdict == Line(LESS, spread, spread, "cpu", 1, 0).verdict

    def test_median_is_judged(self):
        """One slow round does not fail a target, one fast round does not save it."""
        (line,) = judge(outcome([1, 1, 1], [2, 2, 1]))
        assert (2.0, "floor") == (line.reached.median, line.verdict)


def test_quantiles_lie_between_neighbours():
    """The tenth percentile of eleven values is the second."""
    ordered = [float(value) for value in range(11)]
    assert (1.0, 5.0, 9.0) == (
        quantile(ordered, 0.1),
        quantile(ordered, 0.5),
        quantile(ordered, 0.9),
    )


def test_table_has_one_row_for_each_target():
    """Headings, rule, lines; all of one width."""
    lines = judge(outcome([1, 1], [2, 2], (MORE, LESS)))
    rows = table(lines).splitlines()
    assert 4 == len(rows)
    assert 1 == len({len(row) for row in rows})


def test_in_turns():
    """Both ways do each piece once, neither always first; each variant gets its own seconds."""
    done = []
    preparations = []

    @contextlib.contextmanager
    def pieces():
        preparations.append(len(preparations))
        yield (lambda number: done.append(("a", number)), lambda number: done.append(("b", number)))

    turns = InTurns(pieces, 2)
    variants = tuple(Variant(name, turns.seconds_of(way), "wall") for way, name in enumerate("ab"))
    outcome = run_contest(Contest("c", variants, (), warm_ups=0), rounds=2)
    assert [0, 1] == preparations
    assert [("a", 0), ("b", 0), ("b", 1), ("a", 1)] * 2 == done
    assert {"a": 2, "b": 2} == {name: len(times) for name, times in outcome.seconds.items()}
