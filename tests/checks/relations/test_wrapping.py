"""What a thread of a kernel's raises in a mode refuses the call, also where the call waits for that thread."""

import queue
import signal
import threading
import time
import warnings
from dataclasses import dataclass

import pytest
import torch

from verify_norm.checks.relations import wrapping
from verify_norm.loading.returned import RefusedError

ADVICE = "performance drop"


def fails() -> None:
    raise ValueError("a thread does not see the batch")


def waits_for_its_thread() -> None:
    """Its result never comes."""
    results = queue.Queue[int]()

    def work() -> None:
        fails()
        results.put(1)

    threading.Thread(target=work).start()
    results.get()


def joins_its_thread() -> None:
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()


@pytest.mark.parametrize("kernel", [waits_for_its_thread, joins_its_thread])
def test_what_a_thread_raises_is_a_refusal(kernel) -> None:
    hook, handler, started = threading.excepthook, signal.getsignal(wrapping.WAKE), time.perf_counter()
    with pytest.raises(RefusedError, match="a thread does not see the batch"):
        wrapping.refusing(kernel)()
    assert time.perf_counter() - started < 5.0
    assert (threading.excepthook, signal.getsignal(wrapping.WAKE)) == (hook, handler)


def test_a_thread_that_had_raised_has_ended() -> None:
    alive = threading.active_count()
    with pytest.raises(RefusedError):
        wrapping.refusing(waits_for_its_thread)()
    assert threading.active_count() <= alive


def test_outside_the_main_thread_a_call_is_refused_when_it_returns() -> None:
    refused = list[bool]()

    def call() -> None:
        try:
            wrapping.refusing(joins_its_thread)()
        except RefusedError:
            refused.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(5.0)
    assert refused == [True]


def test_a_right_kernel_returns_what_it_returned() -> None:
    x = torch.arange(3.0)
    assert wrapping.refusing(lambda x: 2 * x)(x=x).equal(2 * x)


SETTINGS = [
    (wrapping.deterministically, (), torch.are_deterministic_algorithms_enabled, True),
    (wrapping.in_threads, (2,), torch.get_num_threads, 2),
    (wrapping.default_dtype, (torch.float64,), torch.get_default_dtype, torch.float64),
    (wrapping.matmul_precision, ("high",), torch.get_float32_matmul_precision, "high"),
]


@pytest.mark.parametrize(("block", "arguments", "now", "inside"), SETTINGS)
def test_a_setting_holds_in_its_block_and_is_as_before_after_it(block, arguments, now, inside):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = now()

    def fails_there() -> None:
        assert now() == inside != before
        raise KeyError

    try:
        with pytest.raises(KeyError), block(*arguments):
            fails_there()
        assert now() == before
    finally:
        torch.set_num_threads(threads)


def test_deterministic_algorithms_that_only_warn_do_so_again():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with wrapping.deterministically():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Outputs:
    """What a kernel returns, and a number that torch does not batch."""

    y: torch.Tensor
    rows: int


@pytest.mark.parametrize("of", [("x",), None])
def test_a_sample_of_a_batch_comes_back_as_what_was_returned(of):
    x = torch.arange(6.0).reshape(2, 3)
    given = {"x": x, "eps": 1.0}
    found = wrapping.batched(lambda x, eps: Outputs(x + eps, len(x)), of=of)(**given)
    assert isinstance(found, Outputs)
    assert (found.y.equal(x + 1.0), found.rows) == (True, 2)
    assert wrapping.batched(lambda x, eps: {"y": x + eps}, of=of)(**given)["y"].equal(x + 1.0)


@pytest.mark.parametrize(("shape", "first"), [((3, 2), 0), ((3,), 0), ((2,), 1), ((2, 1, 3), 1)])
def test_data_have_their_batch_in_the_first_dimension_or_the_second(shape, first):
    """A rule of vmap may take it for the first one; one of the parameters alone has no batch in x."""
    places = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x, weight):
            return 2 * x * weight

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x, weight):
            places.append(in_dims)
            x, weight = (t if d is None else t.movedim(d, 0) for t, d in zip((x, weight), in_dims, strict=True))
            return 2 * x * weight, 0

    given = {"x": torch.randn(shape), "weight": torch.randn(shape)}
    for of in (("x",), ("weight",)):
        assert wrapping.batched(Doubled.apply, of=of)(**given).equal(2 * given["x"] * given["weight"])
    assert places == [(first, None), (None, first)]


def test_where_no_tensor_has_a_batch_the_mode_is_refused():
    with pytest.raises(RefusedError, match="no tensor has a batch"):
        wrapping.batched(lambda x: x, of=("weight",))(x=torch.ones(3))


def test_torch_advises_nobody_where_an_operator_has_no_rule_for_vmap(capfd) -> None:
    """It would write a line for each call to the terminal, or warn."""
    library = torch.library.Library("verify_norm_test", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: 2 * x, "CPU")
    doubled = torch.ops.verify_norm_test.doubled

    def advised(call) -> bool:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert call().eq(2).all()
        return any(ADVICE in text for text in (capfd.readouterr().err, *(str(one.message) for one in warned)))

    assert not advised(lambda: wrapping.batched(lambda x: doubled(x), of=("x",))(x=torch.ones(3, 4)))
    assert advised(lambda: torch.func.vmap(doubled)(torch.ones(2, 3))), "as before, elsewhere"
