"""What a case will take, from what others took."""

from dataclasses import replace

import pytest

from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.search.pace import ALWAYS, SHARE, Pace


@pytest.mark.parametrize("device", ALWAYS)
def test_usual_sizes_are_always_allowed_and_others_only_once_something_was_measured(device):
    pace, (rows, elements) = Pace(device, 60.0), ALWAYS[device]
    assert pace.allows((rows, elements))
    assert not pace.allows((rows + 1, elements))
    assert not pace.allows((rows, elements + 1))
    pace.learn((rows, elements), 0.01)
    assert pace.allows((rows + 1, elements + 1))


def test_rows_and_elements_both_cost_time_and_a_larger_case_tells_more():
    pace = Pace("cpu", 60.0, [((10, 1000), 0.1, 0.1)])
    assert pace.most == 60 * SHARE["cpu"]
    assert not pace.allows((4000, 1000))  # as many programs
    assert not pace.allows((10, 2**20))
    pace.learn((300, 300_000), 0.2)  # what a case costs for itself was most of it
    assert pace.allows((2000, 2**20))
    assert not pace.allows((2000, 2**24))


def test_rows_cost_the_kernel_alone_time():
    """Torch runs 65537 rows as fast as 300; most of the time of its cases is that of the checks."""
    pace = Pace("cpu", 60.0)
    pace.learn((300, 100_000), 0.4, 0.001)
    assert pace.fits((65537, 200_000))
    assert not pace.fits((65537, 2_000_000))


def test_a_slow_case_does_not_hide_that_another_was_fast():
    pace = Pace("cpu", 60.0, [((300, 300_000), 30.0, 30.0), ((300, 300_000), 0.2, 0.2)])
    assert pace.allows((1000, 10**6))


def test_less_time_allows_less():
    seen = [((300, 300_000), 0.2, 0.2)]
    assert [Pace("cpu", seconds, seen).allows((2000, 10**6)) for seconds in (60.0, 6.0)] == [True, False]


def test_on_a_gpu_rows_cost_the_kernel_alone_and_small_cases_cost_what_large_ones_do():
    pace = Pace("cuda", 60.0, [((64, 4096), 0.05, 0.0004), ((4096, 2**14), 0.1, 0.001)])
    assert pace.allows((2**20, 2**22))
    assert pace.allows((2**15, 2**26))
    assert pace.allows((2**20, 2**31)), "the judge compares so large a batch by its rows"
    assert not Pace("cuda", 60.0, [((4096, 2**22), 0.05, 0.02)]).allows((2**19, 2**31))
    assert not Pace("cuda", 60.0, [((4096, 2**22), 0.2, 0.0001)]).allows((2**19, 2**27))
    slow = Pace("cuda", 60.0, [((64, 4096), 0.5, 0.45)])  # a loop over rows in Python
    assert not slow.allows((2**20, 2**22))
    assert not Pace("cpu", 60.0, [((64, 4096), 0.05, 0.0004)]).allows((2**20, 2**22))


def test_a_run_has_the_pace_of_its_device_and_its_time():
    op = OPS["layernorm_fwd"]
    assert Pace.of(Settings(device="cuda:1", seconds=7.0), op) == Pace("cuda", 7.0, judge="cuda")
    assert Pace.of(Settings(device="cpu", seconds=8.0), op) == Pace("cpu", 8.0)


def test_numpy_judges_a_users_operator_on_a_gpu_too_and_takes_time_for_elements():
    """Cases of 4 million elements took all of the time of a run, after 24 others."""
    seen = [((260, 5200), 0.03, 0.001)]
    of_own = replace(OPS["layernorm_fwd"], user_defined=True)
    own = replace(Pace.of(Settings(device="cuda:0", seconds=60.0), of_own), seen=seen)
    ours = Pace("cuda", 60.0, seen)
    assert [pace.allows((65536, 2**22)) for pace in (own, ours)] == [False, True]
    assert [pace.usual((300, 2**20)) for pace in (own, ours)] == [False, True]
    own.learn((32, 2**20), 0.3, 0.001)
    assert own.allows((65536, 2**22))


def test_a_table_is_parted_by_the_size_of_its_batches():
    """In its order; rows are those of the operator, and of the batch to which a check repeats them."""
    few, many = CaseSpec((300, 8)), CaseSpec((301, 8))
    batch, columns = CaseSpec((3, 8), batch=400), CaseSpec((2, 200, 4), normalized_ndim=2)
    table = (spec for spec in (many, few, batch, columns))
    assert Pace("cpu", 60.0).parted(table, OPS["layernorm_fwd"]) == ([few, columns], [many, batch])


HIGH = 2**20  # elements that need a look at the time


@pytest.mark.parametrize(
    ("wanted", "seen", "seconds", "allowed"),
    [
        ((400, HIGH), (400, HIGH), 1.0, True),  # exactly its share
        ((400, HIGH), (400, HIGH), 1.001, False),
        ((400, HIGH), (800, 2 * HIGH), 1.5, False),  # a smaller case may take as long
        ((400, 10), (1, 10), 0.004, False),
        ((400, 10), (1, 10), 0.0025, True),
        ((400, 10), (0, 10), 0.0025, True),  # as much as one row
        ((301, HIGH), (301, 1), 1.5 / HIGH, False),
        ((301, HIGH), (301, 0), 1.0 / HIGH, True),
    ],
)
def test_a_case_takes_as_much_longer_as_it_has_more_rows_or_elements(wanted, seen, seconds, allowed):
    pace = Pace("cpu", 40.0, [(seen, seconds, seconds)])
    assert pace.most == 1.0
    assert pace.allows(wanted) == allowed


@pytest.mark.parametrize(
    ("wanted", "seen", "seconds", "inside", "fits"),
    [
        ((10, 10), (10, 10), 1.0, 1.0, True),  # exactly its share
        ((10, 10), (10, 10), 1.001, 1.0, False),
        ((10, 10), (10, 10), 0.7, 0.4, True),
        ((10, 10), (20, 20), 1.1, 0.0, False),  # a smaller case may take as long
        ((10, 1), (1, 1), 0.15, 0.15, False),
        ((10, 1), (0, 0), 0.1, 0.1, True),
    ],
)
def test_what_a_closer_look_lets_run(wanted, seen, seconds, inside, fits):
    assert Pace("cpu", 40.0, [(seen, seconds, inside)]).fits(wanted) == fits
    assert not Pace("cpu", 40.0).fits(wanted)
