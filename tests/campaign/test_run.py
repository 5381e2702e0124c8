"""A campaign examines each unit once, whatever happens to its workers, and a unit that ends them is a finding."""

import threading

import campaigns
import pytest
from campaigns import PLAN, Canned, contents, outcome

from verify_norm.campaign import run as running
from verify_norm.campaign.shard import Shard
from verify_norm.campaign.store import Store
from verify_norm.core.errors import UsageError

UNITS = campaigns.units(4, kernels=("a", "b"))


def run(path, executor, **options):
    running.run(PLAN, UNITS, str(path), executor, **options)
    with Store.reading(str(path)) as store:
        return contents(store)


def ends(times, which=UNITS[2].id):
    """Executor of a unit that ends its process so often."""
    killed = "it ended its process by SIGKILL"
    return Canned(lambda unit, met: outcome(unit, ended=killed) if unit.id == which and met < times else outcome(unit))


def test_lost_units_are_done_again_and_the_store_is_that_of_a_run_without_losses(tmp_path):
    expected = run(tmp_path / "whole", Canned())
    executor = ends(2)
    assert run(tmp_path / "lost", executor) == expected
    assert executor.times[UNITS[2].id] == 3
    assert executor.closed


def test_a_unit_that_ends_its_process_three_times_is_a_finding(tmp_path):
    executor = ends(99)
    found = run(tmp_path / "s", executor)
    assert executor.times[UNITS[2].id] == 3
    assert len(found["outcomes"]) == len(UNITS)
    (finding,) = found["findings"]
    assert "crash" in finding
    assert "the unit has ended the process of 3 workers; the last time it ended its process by SIGKILL" in finding
    assert "verify-norm --kernel a --op layernorm_fwd --dtype bfloat16 --examples 10 --seed 0 --seconds 5" in finding
    again = Canned()
    assert run(tmp_path / "s", again) == found
    assert not again.times


def test_losses_count_over_runs(tmp_path):
    class Once(Canned):
        def examine(self, unit):
            if sum(self.times.values()) == 1:
                raise KeyboardInterrupt
            return super().examine(unit)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "s", Once(ends(99, UNITS[0].id).of, number=1))
    executor = ends(99, UNITS[0].id)
    assert "crash" in run(tmp_path / "s", executor)["findings"][0]
    assert executor.times[UNITS[0].id] == 1


def test_a_problem_is_tried_again_by_the_next_run_alone(tmp_path):
    executor = Canned(lambda unit, met: outcome(unit, problem="no triton") if unit.kernel == "b" else outcome(unit))
    run(tmp_path / "s", executor)
    assert set(executor.times.values()) == {1}
    again = Canned()
    assert run(tmp_path / "s", again) == run(tmp_path / "whole", Canned())
    assert set(again.times) == {unit.id for unit in UNITS if unit.kernel == "b"}


def test_the_shards_have_each_unit_once(tmp_path):
    met = []
    for number in (1, 2, 3):
        executor = Canned()
        run(tmp_path / str(number), executor, shard=Shard(number, 3))
        met += executor.times
    assert sorted(met) == sorted(unit.id for unit in UNITS)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/-1", "", "1/2/3"])
def test_a_shard_that_is_none_is_one_line(text):
    with pytest.raises(UsageError, match="--shard: expected I/N with 1 <= I <= N, such as 1/4"):
        Shard.of(text)


def test_after_its_time_no_unit_begins(tmp_path):
    executor = Canned()
    assert not run(tmp_path / "s", executor, seconds=0.0)["outcomes"]
    assert executor.closed
    assert len(run(tmp_path / "s", Canned())["outcomes"]) == len(UNITS)


def test_as_many_units_are_under_way_as_there_are_workers(tmp_path):
    meeting = threading.Barrier(3)

    class Together(Canned):
        def examine(self, unit):
            if unit.number < 3:
                meeting.wait(30)
            return super().examine(unit)

    assert len(run(tmp_path / "s", Together(number=3))["outcomes"]) == len(UNITS)


def test_an_error_of_ours_ends_the_campaign_and_keeps_what_was_done(tmp_path):
    def fails(unit, met):
        if unit.number == 3:
            raise ZeroDivisionError
        return outcome(unit)

    executor = Canned(fails, number=1)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "s", executor)
    assert executor.closed
    assert len(run(tmp_path / "s", Canned())["outcomes"]) == len(UNITS)
