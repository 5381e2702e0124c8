"""Effects: what a call leaves behind besides its outputs, in the process, in its arguments, and in memory."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from verify_norm.cases import make
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations import leaks, operators
from verify_norm.checks.relations.held import over_bound
from verify_norm.checks.relations.mode_table import COMPILED, INSIDE, in_mode
from verify_norm.checks.relations.rerun import cheap, lasting, once_more, rerun
from verify_norm.core import ways
from verify_norm.core.errors import one_line
from verify_norm.core.finding import Finding, Note, Tried
from verify_norm.core.run import Run
from verify_norm.loading import copies, module_calls, module_state
from verify_norm.running import overlapping
from verify_norm.running.surroundings import written_to

NOT_LEAF = "deepcopy protocol"  # what torch says where copy.deepcopy meets a tensor with a graph


@check()
def effects(run: Run) -> Iterator[Finding | Note | Tried]:
    """A call leaves the process and its arguments as they were, and its outputs own their elements.

    It looks at modes and flags of torch, NumPy and Python, and at what the arguments are (requires_grad, grad, dtype,
    shape, strides, address, version). What the first import of a module changes is no effect. No element of an output
    lies in the memory of another one, for example in an expanded tensor; gradients that torch's autograd makes may. A
    note says where an output requires a gradient although no input does, or is an inference tensor.

    In some cases it also looks for a call that seeds a global random generator, and for tensors that remain in memory
    after each of many calls. To draw from a generator is no effect. A module keeps its mode, the names of its
    state_dict, and which of its parameters require a gradient, and can be copied; two of a class share no parameter. A
    new module has a repr, its running statistics in its state_dict, and no parameters beyond those asked for; a
    constructor that takes device and dtype heeds them; notes say where reset_parameters() or a first value is another
    than usual, and where a call of a module runs no hooks. Operators of torch.library keep what their schema and their
    fake implementation promise. A case also looks at one of three things: the operators of torch.library that the
    compiled kernel calls; whether anything grows with each call; whether BatchNorm in training counts each batch once,
    and with momentum=None averages over those it has counted.
    """
    words = lasting(run.effects, lambda: rerun(run, whole=True))
    damaged = tuple(written_to(damage.buffer) for damage in run.damage)  # `memory` reports it
    for word in words:
        if not word.startswith(damaged):
            yield finding(run, "effects", None, f"{word}; a call must leave it as it was")
    if not run.kernel.autograd:
        for name, tensor in run.returned.items():
            if overlapping.overlaps_itself(tensor):
                message = f"{name} has strides {tensor.stride()} for shape {tuple(tensor.shape)}: its elements overlap"
                yield finding(run, "effects", name, f"{message}, so writing to one changes others; return a copy")
        yield from _unlike_results(run)
    if "effects" in run.case.spec.further and cheap(run) and not run.kernel.remote:
        yield from _seeded(run)
        yield from _of_modules(run)
        for leak in leaks.kept(run):
            yield finding(run, "effects", None, f"{leak}; the kernel keeps what it must release")
        looks = {ways.GROWTH: _growing, ways.COUNTED: _counted}
        if operators.registered():
            yield from _promised(run)
            looks[ways.OPERATORS] = _compiled
        for way in ways.taken(run.case.spec, "effect", ways.offered(run.case.op)["effect"]):
            if way in looks:
                yield Tried(way)
                yield from looks[way](run)


def _unlike_results(run: Run) -> Iterator[Note]:
    """Yield a note of the outputs that torch does not treat as what its operators return of the same inputs."""
    given = [value for value in run.case.arguments.values() if isinstance(value, torch.Tensor)]
    recorded = any(tensor.requires_grad for tensor in given)
    for name, tensor in run.returned.items():
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            yield Note(f"{name} is an inference tensor: torch does not save it for a backward, nor change it in place")
        elif tensor.requires_grad and not recorded:
            yield Note(f"{name} requires a gradient, although no input does")


def _of_modules(run: Run) -> Iterator[Finding | Note]:
    """Yield what a call changes of a module, in training and in evaluation, and what two modules of a class share."""
    assert run.kernel.run is not None
    functions = run.kernel.run, module_calls.evaluating()(run.kernel.run)
    instances = module_calls.Instance(), module_calls.Instance()
    with module_calls.watching() as changes, module_calls.inspecting() as faults:
        for instance, function in zip(instances, functions, strict=True):
            rerun(replace(run, kernel=replace(run.kernel, run=instance.serving(function))))
            if not instance.modules:
                return
    yield from _kept_graph(run)
    for words, wrong in dict.fromkeys(faults):
        yield finding(run, "effects", None, words) if wrong else Note(words)
    for words in dict.fromkeys(changes):
        yield finding(run, "effects", None, f"a call changes the module's {words}; it must leave it as it was")
    for key in instances[0].modules.keys() & instances[1].modules.keys() - {""}:  # "" is of a user's own instance
        one, other = (instance.modules[key] for instance in instances)
        for name in module_state.shared(one, other):
            yield finding(run, "effects", None, f"two new modules share one {name}: each needs its own")
        for name, parameter in one.named_parameters():
            if not parameter.requires_grad and f"{name}.requires_grad from True to False" not in changes:
                yield Note(f"a new module's {name} requires no gradient, so it is not trained")


def _kept_graph(run: Run) -> Iterator[Finding | Note]:
    """Yield that a module cannot be copied after a call in training, for example for averaged weights.

    One that keeps a result of the call is at fault. One that holds, say, a lock never could be copied: a note.
    """
    instance = module_calls.Instance()
    recorded = in_mode(INSIDE, run)
    assert recorded.run is not None
    rerun(replace(run, kernel=replace(recorded, run=instance.serving(recorded.run))))
    for module in instance.modules.values():
        instance.put_back(module)
        try:
            copies.deep(module, torch.nn.Module)
        except Exception as error:
            if NOT_LEAF in str(error):
                message = (
                    "after a call that records gradients copy.deepcopy of the module fails, since it keeps a result"
                )
                yield finding(run, "effects", None, f"{message} of the call, and its graph; keep a detached one")
            else:
                why = one_line(error)
                yield Note(f"copy.deepcopy of the module fails, which averaged weights need: {why}")


def _promised(run: Run) -> Iterator[Finding]:
    """Yield the promises that operators of torch.library break."""
    for words in operators.broken_promises(run):
        yield finding(run, "effects", None, words)


def _compiled(run: Run) -> Iterator[Finding]:
    """Yield the same of operators that a kernel may call where it is compiled alone."""
    yield from _promised(replace(run, kernel=in_mode(COMPILED, run)))


def _growing(run: Run) -> Iterator[Finding]:
    for words in leaks.grown(run):
        yield finding(run, "effects", None, f"{words}; a kernel's memory must not grow with the number of its calls")


def _counted(run: Run) -> Iterator[Finding]:
    """Yield modules of BatchNorm that do not count a batch once in training, and not at all in evaluation."""
    if run.case.op.view != "channels" or run.kernel.autograd or run.case.op.forward or run.kernel.run is None:
        return
    instance = module_calls.Instance()
    serving = replace(run, kernel=replace(run.kernel, run=instance.serving(run.kernel.run)))
    rerun(serving)
    before = instance.counted()
    rerun(serving)
    for name, now in instance.counted().items():
        counts, training = now - before[name], run.case.spec.training
        if counts != training:
            where = "in training" if training else "in evaluation"
            message = f"{name} grows by {counts} in a call {where}, expected {int(training)}"
            yield finding(run, "effects", None, message)
            return
    if instance.counted():
        yield from _averaged(run)


def _averaged(run: Run) -> Iterator[Finding]:
    """Yield running statistics that are no averages of all batches where momentum is None, as the count is for.

    Batch k counts 1/k. The case's own running statistics are there before each, as after load_state_dict.
    """
    case, kernel, instance = run.case, run.kernel, module_calls.Instance()
    assert kernel.run is not None
    serving = instance.serving(kernel.run)
    averaging = replace(kernel, run=lambda **given: serving(**{**given, "momentum": None}))
    for batch in (1, 2, 3):
        spec = replace(case.spec, momentum=1 / batch)
        if not (spec.training and spec.running) or kernel.fitted(spec) != spec:  # it has a momentum of its own
            return
        known = make.build(spec, case.op, kernel.contract, case.device, case.exact, truth=True, poison=case.poison)
        result = once_more(run)(averaging, known)
        if result.problem is not None:  # it takes no None
            return
        why = f"in batch {batch} of a module with momentum=None, which counts 1/{batch}"
        for difference in over_bound(run, result, why):
            if difference.output in ("running_mean", "running_var"):
                yield finding(run, "effects", None, difference.words)
                return


def _seeded(run: Run) -> Iterator[Finding]:
    """Yield the generators whose state after a call does not depend on the state before."""
    states, gpus = [], range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(gpus):
        kept = random.getstate(), np.random.get_state()  # noqa: NPY002
        for seed in (1, 2):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            rerun(run)
            now = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate(), "NumPy": _numpy_state()}
            now |= {f"cuda:{gpu}": torch.cuda.get_rng_state(gpu).tolist() for gpu in gpus}
            states.append(now)
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
    for name in states[0]:
        if states[0][name] == states[1][name]:
            message = f"a call seeds {name}'s global random generator, which belongs to the caller"
            yield finding(run, "effects", None, f"{message}; draw from a torch.Generator or default_rng of its own")


def _numpy_state() -> tuple[bytes, int]:
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    return np.asarray(key).tobytes(), int(position)
