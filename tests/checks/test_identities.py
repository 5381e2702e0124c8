"""The check `identities`: wrong kernels that it alone convicts, and the many right ways to compute, which pass."""

from dataclasses import replace

import counted
import hypothesis
import numpy as np
import pytest
import torch
from checking import ROWS, run_of
from counted import PLAIN, QUIET, SPEC, N, X, case_of
from norms import layernorm, layernorm_bwd, rmsnorm, rmsnorm_bwd
from torch import Tensor

from verify_norm.cases import strategies
from verify_norm.checks import CHECKS, identities
from verify_norm.checks.relations.equations import Equation
from verify_norm.checks.relations.rerun import NearbyError
from verify_norm.checks.relations.stages import stages, sum_error
from verify_norm.checks.relations.symmetries import LAWS
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
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


NOTHING = Equation("no element", "y", *[np.zeros(0)] * 3)


def apart(*by, output="y", tolerance=1.0):
    """An equation whose sides are so far apart, in tolerances of 1."""
    return Equation(f"{output} moves", output, np.array(by), np.zeros(len(by)), np.full(len(by), tolerance))


@pytest.mark.parametrize(
    ("equations", "said"),
    [
        ([], NoData()),
        ([NOTHING], NoData()),
        ([apart(9.0, tolerance=np.inf)], NoData()),
        ([apart(9.0, tolerance=np.inf), apart(0.5)], None),
        ([NOTHING, apart(1.0)], None),
        ([apart(1.001, output="dx")], ("dx", 1.001)),
        ([apart(1.5), NOTHING], ("y", 1.5)),
        ([apart(3.0, 5.0), apart(4.0), apart(0.0)], ("y", 5.0)),
        ([apart(3.0), apart(4.0)], ("y", 4.0)),
    ],
)
def test_it_reports_the_worst_of_an_output_and_says_where_nothing_is_judged(monkeypatch, equations, said):
    monkeypatch.setattr(identities, "_equations", lambda run: equations)
    found = list(CHECKS["identities"].function(run_of(layernorm(), PLAIN)))
    if isinstance(said, tuple):
        (one,) = found
        assert (one.output, one.got) == said
    else:
        assert found == [said] * (said is not None)


def test_a_finding_names_the_place_and_counts_what_is_off():
    run = run_of(layernorm(), PLAIN)
    left = np.array([[1.0, 1.5, 0.0], [0.0, 3.0, 2.0]])
    law = identities._found(run, Equation("y must not change", "y", left, np.ones((2, 3)) / 4, np.ones((2, 3))))
    assert law.message.startswith("y[1, 1]: expected 0.25, got 3, 2.75 apart, 1 allowed: y must not change; 3 of 6 ")
    assert (law.index, law.got, law.want, law.allowed) == ((1, 1), 3.0, 0.25, 1.0)
    left = np.array([0.0, 3.0, 1.0])
    total = identities._found(run, Equation("Σdx = 0", "dx", left, np.zeros(3), np.ones(3)))
    assert total.message.startswith("dx of row 1: expected 0, got 3, 3 apart, 1 allowed: Σdx = 0; 1 of 3 ")


def tried(monkeypatch, named, op="layernorm_bwd", **answers):
    """The laws that a case asks which names these, and the findings: of a law that is not told, one equation."""
    asked = []

    def law(name):
        def of(run):
            asked.append(name)
            answer = answers.get(name, [apart(0.0)])
            if isinstance(answer, NearbyError):
                raise answer
            return answer

        return of

    monkeypatch.setattr(identities, "LAWS", {name: law(name) for name in LAWS})
    monkeypatch.setattr(identities, "_sums", lambda run: ())
    run = counted.run_of(case_of(replace(PLAIN, further=named), op))
    return asked, [one.message for one in identities._equations(run) if isinstance(one, Finding)]


FAILS, REFUSES = NearbyError("there it fails"), NearbyError()


@pytest.mark.parametrize(
    ("named", "answers", "asked", "failures"),
    [
        ((), {}, [], 0),
        (("linearity",), {}, ["linearity"], 0),
        (("scale", "shift"), {}, ["scale", "shift"], 0),
        (("linearity",), {"linearity": None}, ["linearity", "shift"], 0),
        (("shift",), {"shift": None, "permutation": None}, ["shift", "permutation", "scale"], 0),
        (("scale", "shift"), {"scale": None, "shift": None}, ["scale", "shift", "permutation"], 0),
        (("scale", "shift"), {"shift": None}, ["scale", "shift"], 0),
        (("shift",), {"shift": REFUSES}, ["shift", "permutation"], 0),
        (("shift",), {"shift": FAILS}, ["shift"], 1),
        (("scale", "shift"), {"shift": REFUSES}, ["scale", "shift"], 0),
        (("scale", "shift"), {"scale": FAILS, "shift": FAILS}, ["scale", "shift"], 2),
        (("scale", "shift"), {"scale": FAILS, "shift": REFUSES}, ["scale", "shift"], 1),
        (("shift",), dict.fromkeys(LAWS), ["shift", "permutation", "scale", "scale_dy", "linearity"], 0),
    ],
)
def test_where_no_named_law_applies_the_next_one_that_does_is_tried(monkeypatch, named, answers, asked, failures):
    found, messages = tried(monkeypatch, named, **answers)
    assert (found, len(messages)) == (asked, failures)
    assert all("there it fails" in message for message in messages)


def test_a_forward_has_no_laws_of_dy(monkeypatch):
    assert tried(monkeypatch, ("scale_dy",), "layernorm_fwd")[0] == ["shift"]
    assert tried(monkeypatch, ("linearity",), "layernorm_fwd", shift=None)[0] == ["shift", "permutation"]


@pytest.mark.parametrize("op", ["add_layernorm_bwd", "add_rmsnorm_bwd"])
def test_the_sums_of_a_fused_addition_have_those_of_what_is_added(op):
    """Of 3 everywhere Σ is 24 more in each of two times two rows; of 3·x̂, Σ·x̂ is."""
    x = np.tile(X[:1], (2, 2, 1))
    for passed in (3 + 0 * x, 3 * x):
        case = case_of(CaseSpec((2, 2, N), eps=1e-12), op, residual_out=x, dy=0 * x, dresidual_out=passed)
        for one in identities._sums(counted.run_of(case)):
            with_it = np.ones(N) if one.name.startswith("Σdx = ") else X[0]
            np.testing.assert_allclose(one.right, float((passed[0, 0] * with_it).sum()), atol=1e-9)
            assert one.ratio.max() <= 1


U64 = 2.0**-53


def sums_of_nothing(contract, spec=PLAIN, op="layernorm_bwd", got=0.0, **values):
    """The sums where the truth about dx is exactly 0: their tolerance has no rounding of it."""
    case = case_of(spec, op, contract, **values)
    dx = Expected(0 * X, 0 * X, "float32")
    run = counted.run_of(replace(case, expected=case.expected | {"dx": dx}), contract)
    output = replace(run.outputs["dx"], got=np.full(X.shape, got))
    return replace(run, outputs=run.outputs | {"dx": output})


def test_the_crumbs_of_float64_count_where_x_is_far_from_0():
    """Of dx = 1 and dy = 0 they are 4u(|x̂| + r·max|x|) of each element: |x| is ½, and ¼ in the first row."""
    x = X / 2 * np.array([[0.5], [1.0], [1.0], [1.0]])
    run = sums_of_nothing(counted.TWO_PASS, got=1.0, x=x, dy=0 * X)
    for one in identities._sums(run):
        roundings = sum_error(stages(run), 0 * X, None, 0 * X, X if "x̂" in one.name else X * 0 + 1).ravel()
        expected = 4 * U64 * N * np.array([1 + 4 * 0.5, *[1 + 2 * 0.5] * 3])
        np.testing.assert_allclose(one.tolerance - roundings, expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("op", "dy", "passed", "terms"),
    [
        ("layernorm_bwd", 3 * QUIET, None, 2 * (3 + 0 + 3)),
        ("layernorm_bwd", 3 * X, None, 2 * (3 + 3 + 3)),
        ("add_layernorm_bwd", 3 * X, 5 * QUIET, 2 * (3 + 3 + 3) + 5),
    ],
)
def test_the_crumbs_of_float64_count_all_terms_of_a_sum(op, dy, passed, terms):
    """r = 2, and |g|, |x̂·c1| and mean |g| are 3 or 0; 4u of as many roundings as a row has terms."""
    contract = Contract(accumulate="float64", stats="float64", partials="float64", variance="two_pass")
    values = {"dy": dy, "x": X / 2, "residual_out": X / 2} | ({} if passed is None else {"dresidual_out": passed})
    run = sums_of_nothing(contract, op=op, **values)
    for one in identities._sums(run):
        phi = X if "x̂" in one.name else 0 * X + 1
        roundings = sum_error(stages(run), dy, passed, 0 * X, phi).ravel()
        np.testing.assert_allclose(one.tolerance - roundings, 4 * U64 * N * N * terms, rtol=1e-3)


def test_the_sums_allow_what_a_stage_makes_dy_off_by():
    """A gate of −3 makes of 1 what its own roundings make of it."""
    gate = np.full(X.shape, -3.0)
    run = counted.run_of(case_of(SPEC, "gated_rmsnorm_bwd", gate=gate, x=X, dy=QUIET))
    s, delta = stages(run), run.case.expected["dx"].delta
    (one,) = identities._sums(run)
    dz = identities.cotangent(s, QUIET)[0]
    exact = sum_error(s, dz, None, delta, s.norm.xhat, lost=0.0).ravel()
    lost = np.abs(dz * s.norm.weighted(s.norm.xhat)).sum(1) * 2.0**-24
    assert (one.tolerance - exact > 2 * lost).all()


def test_a_gradient_that_cancels_may_be_an_infinity_where_its_tolerance_is_beyond_its_type():
    """Two samples have x̂ of ±1: dweight is 0 by equal x̂, and far beyond float16 by the least difference of two."""

    def batchnorm_bwd(dy, x, weight, bias, mean, rstd, training, eps):
        xhat = (x - mean) * rstd
        g = dy * weight.float()
        dx = rstd * (g - g.mean(0) - xhat * (g * xhat).mean(0))
        return dx, (dy * xhat).sum(0).to(weight.dtype), dy.sum(0).to(bias.dtype)

    run = {"weight_dtype": "float16", "dy_log2_scale": 60, "dy_layout": "scalar", "further": LAWS}
    specs = [CaseSpec((2, 1), seed=seed, **run) for seed in range(8)]
    runs = [run_of(batchnorm_bwd, spec, "batchnorm_bwd") for spec in specs]
    found = [one for run in runs for one in CHECKS["identities"].function(run) if isinstance(one, Finding)]
    assert [one.message for one in found] == []
    assert {np.isfinite(run.outputs["dweight"].got).all() for run in runs} == {True, False}
