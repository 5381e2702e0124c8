"""What a run compiled adds up, and the part since a moment is what is left without what was before."""

from verify_norm.core.work import NOTHING, Compiled, Work

FIRST, SECOND = Compiled(kernels=1, cached=2, graphs=3, seconds=0.5), Compiled(10, 20, 30, 4.0)


def test_what_was_compiled_adds_up_and_can_be_taken_apart():
    both, since = FIRST + SECOND, SECOND - FIRST
    assert both == Compiled(kernels=11, cached=22, graphs=33, seconds=4.5)
    assert both - FIRST == SECOND
    assert since == Compiled(kernels=9, cached=18, graphs=27, seconds=3.5)
    assert FIRST + NOTHING == FIRST - NOTHING == FIRST


def test_a_run_in_one_process_started_and_compiled_nothing():
    assert Work() == Work(workers=1, started=0, starting=0.0, compiled=Compiled(0, 0, 0, 0.0))
