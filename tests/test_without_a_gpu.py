"""What is done on a GPU alone, as far as it is ours: reached with a fake one. test_gpu runs it on a real one."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from fake_gpu import FakeGpu, OnGpu
from norms import rmsnorm
from torch._dynamo.exc import InternalTorchDynamoError

from verify_norm.cases import contents, gpu_memory, make, placement
from verify_norm.checks import CHECKS, determinism
from verify_norm.checks.relations import mode_table
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.equality import pair
from verify_norm.loading.returned import RefusedError
from verify_norm.running import captures, delayed_inputs, environment, guards, surroundings
from verify_norm.running.clock import Clock
from verify_norm.running.execute import execute
from verify_norm.search.examine import examine, examine_in
from verify_norm.search.examined import NO_ROOM, Examined
from verify_norm.validation import zoo

SPEC = CaseSpec((4, 16))
RIGHT = rmsnorm()
KERNEL = Kernel("k", "rmsnorm_fwd", run=RIGHT)


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch)


class Runner:
    """A process of its own, as `examine_in` sees it: it counts how often it is replaced."""

    kernel, device, isolated = KERNEL, "cuda:1", True

    def __init__(self, result):
        self.result, self.replaced = result, 0

    def announce(self, name):
        """Note nothing."""

    def call(self, *arguments, **options):
        return self.result

    def stage(self):
        return ""

    def fresh(self):
        self.replaced += 1
        return True


@pytest.mark.parametrize("dead", [True, False])
def test_a_dead_context_replaces_its_process(dead):
    runner = Runner(Examined(SPEC, dead=dead))
    examine_in(runner, SPEC, ("accuracy",), 1.0)
    assert runner.replaced == dead
    runner = Runner(pair.Returned(problem="CUDA error" if dead else ""))
    pair.called(runner, SPEC, 1.0)
    assert runner.replaced == dead


@pytest.mark.parametrize("dies", ["in the kernel", "in a check", "never"])
def test_a_context_that_dies_is_noticed(gpu, monkeypatch, dies):
    gpu.holds_cases("cpu")  # so that the outputs are where the case is

    def broken(**given):
        gpu.dead = dies == "in the kernel"
        return RIGHT(**given)

    def breaking(run):
        gpu.dead = dies == "in a check"
        return ()

    monkeypatch.setitem(CHECKS, "memory", replace(CHECKS["memory"], function=breaking))
    examined = examine(replace(KERNEL, run=broken), SPEC, ("accuracy", "memory"), "cuda:1")
    assert examined.dead == (dies != "never")
    assert ("illegal memory access" in (examined.problem or "")) == (dies == "in the kernel")
    assert set(gpu.waited) == {"cuda:1"}


def test_a_call_ends_with_its_work_on_its_own_device(gpu):
    assert Clock().around(lambda: 7, "cuda:1")() == 7
    assert gpu.waited == ["cuda:1"]  # not before it: late inputs must not arrive
    assert Clock().around(lambda: 7, "cpu")() == 7
    assert gpu.waited == ["cuda:1"]


@pytest.mark.parametrize(("device", "current"), [("cuda:1", 1), ("cuda:0", 0), ("cpu", 0)])
def test_a_kernel_runs_where_its_case_is(gpu, device, current):
    """A launch without a guard goes to the current device."""
    seen = []
    case = make.case(SPEC, OPS["rmsnorm_fwd"], Contract())
    gpu.holds_cases(device)
    execute(replace(KERNEL, run=lambda x: seen.append(gpu.current)), case)
    assert seen == [current]
    assert gpu.current == 0


@pytest.mark.parametrize("at", ["case", "build"])
def test_without_room_a_case_is_left_out_and_the_cache_is_given_back(gpu, monkeypatch, at):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(make, at, full)
    if at == "case":
        assert examine(KERNEL, SPEC, ("accuracy",), "cuda:0").unsupported == NO_ROOM
    else:
        assert pair.call(KERNEL, SPEC, "cuda:0").refused == NO_ROOM
    assert gpu.emptied == 1


def test_a_kernel_that_has_no_room_is_no_case_without_room(gpu):
    def full(x):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gpu.holds_cases("cpu")
    examined = examine(replace(KERNEL, run=full), SPEC, ("signature",), "cuda:0")
    assert (examined.unsupported, [f.check for f in examined.findings]) == (None, ["signature"])


@pytest.mark.parametrize(("others", "left_out"), [(2**39, True), (2**39 - 1, False)])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        InternalTorchDynamoError("RuntimeError: CUDA driver error: out of memory\n\nTo see its stack, set …"),
    ],
)
def test_a_kernel_that_lacks_what_other_processes_hold_is_a_case_without_room(
    gpu, monkeypatch, error, others, left_out
):
    def full(x):
        raise error

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40 - others - 2**20, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2**20)
    gpu.holds_cases("cuda:0")
    examined = examine(replace(KERNEL, run=full), SPEC, ("signature",), "cuda:0")
    assert (examined.unsupported == NO_ROOM) == left_out
    assert bool(examined.findings) != left_out
    assert not gpu_memory.taken_by_others(torch.OutOfMemoryError(), torch.device("cpu"))
    assert not gpu_memory.taken_by_others(RuntimeError("no"), torch.device("cuda:0"))


@pytest.mark.parametrize("words", ["unknown error", "CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`"])
def test_cuda_that_fails_beside_other_processes_accuses_nobody(gpu, monkeypatch, words):
    def failing(x):
        raise RuntimeError(f"CUDA error: {words}")

    kernel, others = replace(KERNEL, run=failing), 2**39
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40 - others, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    gpu.holds_cases("cuda:0")
    with pytest.raises(gpu_memory.CrowdedError, match="CUDA error"):
        examine(kernel, SPEC, ("signature",), "cuda:0")
    others -= 1
    (found,) = examine(kernel, SPEC, ("signature",), "cuda:0").findings
    assert words in found.message


@pytest.mark.parametrize(("free", "fits"), [(2**20, True), (2**20 - 1, False)])
def test_a_far_tensor_takes_at_most_half_of_the_free_memory(gpu, monkeypatch, free, fits):
    made = torch.empty
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - 2**10, 2**40))
    gpu.keeps(2**10)  # for no tensor
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: made(size, dtype=dtype))
    assert (placement._untouched(2**18, "float16", "cuda:1") is not None) == fits


def case_of(name, spec=SPEC, cls=OnGpu):
    """Return a case whose tensors say that they are on a GPU."""
    case = make.case(spec, OPS[name], Contract())
    moved = {n: v.as_subclass(cls) if isinstance(v, torch.Tensor) else v for n, v in case.arguments.items()}
    return replace(case, arguments=moved)


def test_inputs_are_delayed_on_an_nvidia_gpu_alone(monkeypatch):
    case = case_of("layernorm_bwd")
    for version, limit, possible in (("12", 2**28, True), (None, 2**28, False), ("12", 2**8, False)):
        monkeypatch.setattr(torch.version, "cuda", version)
        monkeypatch.setattr(delayed_inputs, "LIMIT", limit)
        assert delayed_inputs.possible(case) is possible
        assert not delayed_inputs.possible(case_of("layernorm_bwd", cls=torch.Tensor))


def test_delayed_inputs_are_nan_until_they_arrive_and_parameters_are_there(gpu, monkeypatch):
    case, early = case_of("layernorm_bwd", replace(SPEC, dy_layout="row_strided")), {}
    before = {n: v.clone() for n, v in case.arguments.items() if isinstance(v, torch.Tensor)}

    def arrive(table, **options):
        early.update({n: case.arguments[n].clone() for n in before})
        delayed_inputs_arrive[(4, len(table))](table, EARLY=False, DELAY=0, BLOCK=1024)

    delayed_inputs_arrive = delayed_inputs.arrive
    monkeypatch.setattr(delayed_inputs, "_stream", lambda device: None)
    monkeypatch.setattr(delayed_inputs, "arrive", {(delayed_inputs.PROGRAMS, 4): arrive})
    with delayed_inputs.arriving(case):
        late = {n: case.arguments[n].clone() for n in before}
    for name, values in before.items():
        assert torch.equal(late[name], values)
        assert bool(early[name].isnan().all()) == (name not in ("weight", "bias"))
    assert len(gpu.waited) == 3  # for what made the inputs, for NaN in them, and for the kernel


def test_a_kernel_that_does_not_wait_for_late_inputs_is_found(monkeypatch):
    arrivals = []

    @contextmanager
    def arriving(case):
        tensors = [case.arguments["x"]]
        kept = [tensor.clone() for tensor in tensors]
        tensors[0].fill_(float("nan"))
        arrivals.append(lambda: contents.overwrite(tensors[0], kept[0]))
        yield
        arrivals.clear()
        contents.overwrite(tensors[0], kept[0])

    def waiting(**given):
        for arrive in arrivals:
            arrive()
        return RIGHT(**given)

    late = SimpleNamespace(device=lambda name: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(delayed_inputs, "arriving", arriving)
    case = make.case(replace(SPEC, further=("determinism",)), OPS["rmsnorm_fwd"], Contract())
    for function, possible, outputs in ((RIGHT, True, {"y", "rstd"}), (waiting, True, set()), (RIGHT, False, set())):
        monkeypatch.setattr(delayed_inputs, "possible", lambda case, answer=possible: answer)
        run = execute(replace(KERNEL, run=function), case)
        assert {found.output for found in determinism.determinism(run)} == set()  # on a CPU
        with monkeypatch.context() as there:
            there.setattr(determinism, "torch", late)
            found = list(determinism.determinism(run))
        assert {one.output for one in found} == outputs
        assert all(determinism.WHY in one.message for one in found)


@pytest.mark.parametrize("changes", [True, False])
def test_a_call_leaves_the_current_device(gpu, monkeypatch, changes):
    state = {"the current CUDA device": (gpu.current_device, gpu.set_device)}
    monkeypatch.setattr(surroundings.state, "CUDA", state)
    before = surroundings.Surroundings(case_of("rmsnorm_fwd").arguments)
    gpu.current = 3 * changes
    assert [words.startswith("the current CUDA device") for words in before.changes()] == [True] * changes
    assert gpu.current == 0


@pytest.mark.parametrize("seeds", [0, 1, None])
def test_a_call_that_seeds_the_generator_of_the_gpu_is_found(monkeypatch, seeds):
    def seeding(**given):
        state["seeded"] = seeds  # the number of a GPU
        return RIGHT(**given)

    state = {"seeded": None}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    monkeypatch.setattr(
        torch.cuda, "get_rng_state", lambda gpu: torch.zeros(2) if gpu == state["seeded"] else torch.get_rng_state()
    )
    run = execute(replace(KERNEL, run=seeding), make.case(SPEC, OPS["rmsnorm_fwd"], Contract()))
    found = [item.message for item in CHECKS["effects"].function(run) if isinstance(item, Finding)]
    assert [f"cuda:{seeds}'s global random generator" in message for message in found] == [True] * (seeds is not None)


def test_a_graph_is_replayed_with_the_values_given(gpu):
    def of_a_number(x, weight):
        if not capturing:
            number[:] = [float(x[0])]
        return x * weight + number[0]

    number, capturing = [], []
    x, weight = torch.arange(1.0, 4.0), torch.full((3,), 5.0)
    assert captures.replayed(lambda x, weight: x * weight)(x=x, weight=weight).tolist() == [5, 10, 15]
    graph = torch.cuda.graph
    gpu.patch(torch.cuda, "graph", lambda one, *of, **on: capturing.append(one) or graph(one, *of, **on))
    assert captures.replayed(of_a_number)(x=x, weight=weight).tolist() == [5.5, 10.5, 15.5]  # of 1 − ½, not of 1
    assert gpu.ended == []


@pytest.mark.parametrize("known", [True, False], ids=["left open", "ended by torch"])
def test_a_capture_that_fails_leaves_the_stream_and_the_allocator_as_they_were(gpu, known):
    """pytorch#180395: an allocator that takes a capture to be under way frees no memory, so a later case has none."""
    usual = torch.cuda.current_stream()
    gpu.patch(torch.cuda, "current_stream", lambda: usual)
    if not known:
        gpu.patch(torch._C, "_cuda_endAllocateToPool", Mock(side_effect=RuntimeError("not currently recording")))
    with pytest.raises(RefusedError, match="CUDA cannot capture it"):
        captures.replayed(lambda x: x * x.sum().item())(x=torch.ones(3))
    assert gpu.streams == [usual]
    assert gpu.ended == [("end", 0, (0, 1)), ("release", 0, (0, 1))] * known


@pytest.mark.parametrize(
    ("device", "autograd", "graphs"), [("cuda:1", False, True), ("cuda:1", True, False), ("cpu", False, False)]
)
def test_a_graph_is_a_mode_of_a_kernel_on_a_gpu(device, autograd, graphs, monkeypatch):
    monkeypatch.setattr(mode_table.captures, "MISROUTES", False)  # torch 2.11 does: there it depends on the arguments
    case = SimpleNamespace(op=OPS["layernorm_bwd"], device=device, spec=SPEC)
    run = SimpleNamespace(
        case=case, kernel=SimpleNamespace(autograd=autograd, remote=False, contract=Contract()), damage=()
    )
    assert (mode_table.REPLAYED in mode_table.modes_of(run)) == graphs
    case.spec = replace(SPEC, mode=ways.REPLAYED)
    assert mode_table.modes_of(run) == (mode_table.REPLAYED,) * graphs


def test_an_empty_allocation_that_is_too_large_for_guards_is_poisoned_on_a_gpu(monkeypatch):
    monkeypatch.setattr(guards, "LIMIT", 16)
    for kind, poisoned in ((OnGpu, True), (torch.Tensor, False)):
        for function, empty in ((torch.ops.aten.empty.memory_format, True), (torch.ops.aten.zeros.default, False)):
            fresh = torch.zeros(64).as_subclass(kind)
            got = guards.PoisonEmpty(4096.0)._guarded(fresh, function)
            assert bool((got == 4096.0).all()) == (poisoned and empty)


def test_the_environment_names_the_device_of_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    facts = environment.environment("cuda:1")
    assert facts["device"] == "GPU 1"
    assert "interpreter" not in facts


@pytest.mark.parametrize(("capability", "runs"), [((9, 0), True), ((8, 0), False)])
def test_an_example_that_needs_an_architecture_is_run_there_alone(monkeypatch, capability, runs):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert ("A39_no_dependency_wait" in {one.name for one in zoo.detectable("cuda:0")}) == runs
