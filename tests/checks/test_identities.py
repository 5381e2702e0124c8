"""The check `identities`: wrong kernels that it alone convicts, and the many right ways to compute, which pass."""

from dataclasses import replace

import hypothesis
import pytest
import torch
from checking import ROWS, run_of
from norms import layernorm, layernorm_bwd, rmsnorm, rmsnorm_bwd
from torch import Tensor

from verify_norm.cases import strategies
from verify_norm.checks import CHECKS
from verify_norm.checks.relations.stages import stages
from verify_norm.checks.relations.symmetries import LAWS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER, CaseSpec

DTYPES = ("float32", "float16", "bfloat16")
VARIANTS = {"shift": 2}  # a shift by 2⁹ times the largest x


def remembering(function):
    """Returns what it returned for the first input of a shape."""
    known: dict[torch.Size, tuple[Tensor, ...]] = {}

    def run(x, weight, bias, eps, normalized_shape):
        return tuple(t.clone() for t in known.setdefault(x.shape, function(x, weight, bias, eps, normalized_shape)))

    return run


def findings(run):
    """What all checks say of it, but for `determinism`, which a kernel that remembers passes or fails by its order."""
    checks = [c for c in CHECKS.values() if c.applies(run.case.op) and c.looks(run) and c.name != "determinism"]
    return [f for c in checks for f in c.function(run) if isinstance(f, Finding)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "identity", "outputs", "words"),
    [
        (layernorm("hard-coded eps"), "scale", {"y", "rstd"}, "and eps by 4^"),
        (layernorm("one pass"), "shift", {"rstd"}, "must not change when x moves by "),
        (None, "permutation", {"y", "mean", "rstd"}, "another order"),
    ],
)
def test_a_wrong_forward_that_no_other_check_sees(function, identity, outputs, words, dtype):
    if dtype != "float32" and identity == "shift":
        pytest.skip("16 bits do not hold x + c far away")
    spec = replace(
        ROWS, dtype=dtype, further=(identity,), variant=VARIANTS.get(identity, 0), data="integers"
    )  # exact in float16 at 2⁻⁸ times, too
    found = findings(run_of(function or remembering(layernorm()), spec))
    assert {f.check for f in found} == {"identities"}
    assert outputs <= {f.output for f in found}
    assert all(words in f.message and f.allowed is not None and f.index is not None for f in found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "identity", "words"),
    [
        (layernorm_bwd("hard-coded eps"), "scale", "and eps by 4^"),
        (layernorm_bwd("clamped"), "scale_dy", "when dy is scaled by −2^"),
        (layernorm_bwd("skips zeros"), "linearity", "two halves"),
    ],
)
def test_a_wrong_backward_that_no_other_check_sees(function, identity, words, dtype):
    spec = replace(ROWS, dtype=dtype, further=(identity,), data="integers")
    found = findings(run_of(function, spec, "layernorm_bwd"))
    assert {f.check for f in found} == {"identities"}
    assert "dx" in {f.output for f in found}
    assert all(words in f.message for f in found)


@pytest.mark.parametrize("direction", ["Σdx = ", "Σdx·x̂ = "])
def test_the_sums_see_errors_that_all_point_one_way(direction):
    """Every element stays within its own bound, and their sum does not."""
    spec = replace(ROWS, shape=(4, 1024), further=())
    right = run_of(layernorm_bwd(), spec, "layernorm_bwd")
    delta, xhat = right.case.expected["dx"].delta, stages(right).norm.xhat
    push = torch.from_numpy(0.9 * delta * (1.0 if direction == "Σdx = " else xhat / abs(xhat)))

    def pushed(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        want = torch.from_numpy(right.case.expected["dx"].value)
        return (want + push).float(), *layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)[1:]

    assert findings(right) == []
    found = {f.check: f for f in findings(run_of(pushed, spec, "layernorm_bwd"))}
    assert found.keys() == {"identities", "sums"}
    found = found["identities"]
    assert found.output == "dx"
    assert f"allowed: {direction}" in found.message


EXPANDED, SHIFTED = {"expanded": True}, {"variance": "shifted"}
RIGHT = [
    *(("layernorm_fwd", layernorm(how), {}) for how in ("", "float64", "pow")),
    ("layernorm_fwd", layernorm("welford"), {"summation": "sequential"}),
    ("layernorm_fwd", layernorm("shifted"), SHIFTED),
    ("layernorm_fwd", layernorm("expanded"), EXPANDED),
    ("layernorm_fwd", layernorm("float64"), {"batch_invariant": True}),
    *(("layernorm_bwd", layernorm_bwd(how), {}) for how in ("", "float64", "recomputed", "pow", "sums")),
    ("layernorm_bwd", layernorm_bwd("atomic"), {"summation": "atomic", "deterministic": False}),
    ("layernorm_bwd", layernorm_bwd("shifted"), SHIFTED),
    ("rmsnorm_fwd", rmsnorm("llama"), {"xhat": "x"}),
    ("rmsnorm_bwd", rmsnorm_bwd("cubed"), {}),
]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_right_kernels_pass_on_random_cases(number):
    """A slice of a study of ten thousand cases over all ops."""
    (op, function, contract), seen = RIGHT[number], []

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=30,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.specs(OPS[op], DTYPES, 200))
    def one(spec):
        run = run_of(function, replace(spec, further=FURTHER), op, **contract)
        for name in ("identities", "batch_invariance", "degenerate"):
            if CHECKS[name].looks(run):
                assert [f.message for f in CHECKS[name].function(run) if isinstance(f, Finding)] == []
                seen.append(name)

    one()
    assert seen.count("identities") > 9


@pytest.mark.parametrize("op", ["groupnorm_bwd", "batchnorm_bwd", "instancenorm_bwd"])
@pytest.mark.parametrize("law", LAWS)
def test_groups_and_channels_have_identities_too(op, law):
    def right(dy, x, weight, bias, **options):
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        eps, functional = options["eps"], torch.nn.functional
        if op == "groupnorm_bwd":
            y = functional.group_norm(leaves[0], options["num_groups"], *leaves[1:], eps)
        else:
            training = {"use_input_stats" if op[0] == "i" else "training": True}
            function = functional.instance_norm if op[0] == "i" else functional.batch_norm
            y = function(leaves[0], None, None, *leaves[1:], **training, eps=eps)
        return [g.to(x.dtype) for g in torch.autograd.grad(y, leaves, dy.double())]

    def one_sided(**arguments):
        dx, *others = right(**arguments)
        return [dx.abs(), *others]

    spec = CaseSpec(shape=(3, 4, 10), num_groups=2 if op == "groupnorm_bwd" else None, further=(law,))
    assert findings(run_of(right, spec, op)) == []
    assert "identities" in {f.check for f in findings(run_of(one_sided, spec, op))}


def test_a_kernel_that_fails_near_by_is_told():
    def touchy(x, weight, bias, eps, normalized_shape):
        assert eps > 1e-6, "no such eps"
        return layernorm()(x, weight, bias, eps, normalized_shape)

    (found,) = findings(run_of(touchy))
    assert (found.check, found.status) == ("identities", "error")
    assert "no such eps" in found.message


def test_it_says_what_it_cannot_look_at():
    looks = CHECKS["identities"].looks
    assert looks(run_of(layernorm()))
    assert not looks(run_of(layernorm(), replace(ROWS, further=())))  # a forward has no sums
    assert looks(run_of(layernorm_bwd(), replace(ROWS, further=()), "layernorm_bwd"))
    for options in ({"shape": (0, 8)}, {"shape": (100, 100)}, {"special": "nan"}):
        assert not looks(run_of(layernorm(), replace(ROWS, **options)))
