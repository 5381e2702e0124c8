"""Reports and audits by hand, with all that a page can meet: usual ones, empty ones, infinite ones, hostile ones."""

from dataclasses import replace
from math import inf, nan

from verify_norm.auditing.fingerprint.statement import Fingerprint, Statement, undecided
from verify_norm.auditing.model import Audit, Averages, Heat, Ladder, Rung, UlpReport, WorstCase
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage, Seen
from verify_norm.core.finding import Condition, Finding
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Detectable, Place, Skip, Tally
from verify_norm.core.ulp import UlpStats

SPEC = CaseSpec(shape=(4, 256), offset=100.0)
SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = '"><img src=x onerror="window.hacked = 2">'
HOSTILE = f"{SCRIPT}{IMAGE}</script><!-- ]]> %{{x}} &lt;b&gt; '\x00\x1b"

CONDITION = Condition(1140.0, 100.0, 0.99)
FINDING = Finding(
    kernel="onepass",
    check="accuracy",
    output="y",
    status="fail",
    message="y[1] is 1.14e+04 ULP from float64",
    spec=SPEC,
    index=(1,),
    got=1.5,
    want=1.25,
    ulp=11433.4,
    allowed=813.35,
    cases=13,
    after=28,
    condition=CONDITION,
)
BETWEEN = replace(FINDING, check="identities", message="the two sides are apart", ulp=None, allowed=1.3e-4, after=1)

REPORT = Report(
    kernel="onepass",
    op="layernorm_fwd",
    target="mine.py:onepass",
    backend="triton",
    contract=Contract(),
    settings=Settings(device="cpu"),
    environment={"device": "CPU (x86_64)", "date": "2026-11-21", "interpreter": "3.7"},
    cases=99,
    seconds=9.5,
    seconds_in_kernel=4.0,
    findings=(FINDING, BETWEEN),
    tallies=(
        Tally(
            "y",
            "float16",
            9,
            54,
            1,
            UlpStats(54, 1, 50, inf, 9.0, 1.0, (*[1] * 53, *[0] * 108, 1)),
            inf,
            SPEC,
            (0, 1),
            CONDITION,
            Place(SPEC, (0, 2), replace(CONDITION, cancellation=inf)),
        ),
    ),
    checks=(
        CheckResult("accuracy", "right [sic]", 99, 13),
        CheckResult("determinism", "the same bits", 35, 0),
        CheckResult("gradient", "as it says", 0, 0),
        CheckResult("batch_invariance", "alone", 39, 0, 38, 39),
    ),
    skipped=(Skip("output rstd", "onepass does not return it", 9),),
    layouts={"x transposed": 9, "x contiguous": 90},
    detectable=(
        Detectable("accuracy", "y", "float32", 6, 5e-7, 7e-7, 1e-6, 1.0),
        Detectable("accuracy", "y", "float16", 6, 5e-6, 5e-5, inf),
        Detectable("sums", "mean", "float32", 6, 4e-5),
        Detectable("statistics", "mean", "float32", 6, 3e-7, 4e-7, 5e-7),
    ),
    coverage=Coverage(99, 39, 39, 0, 98, {"y": 98}),
    seen=Seen(
        4097,
        512,
        0,
        65536,
        {"float32": 50, "float16": 48},
        {"float32": 9},
        {"transposed": 9, "every_other": 2, "contiguous": 90},
        {"calls": {"many calls": 3, "two threads": 2}, "modes": {"no_grad": 7}},
        {"aten::native_layer_norm": 21},
        others={"float32": 5},
    ),
)

NEGATIVE = CaseSpec(shape=(2, 3), dtype="bfloat16", x_layout="transposed", offset=-10.0)
INFINITE_ERROR = Finding(
    kernel="k",
    check="accuracy",
    output="dx",
    status="fail",
    message="dx[0, 1] is [inf] ULP",
    spec=NEGATIVE,
    index=(0, 1),
    got=float("nan"),
    want=float("-inf"),
    ulp=float("inf"),
    allowed=0.5,
    cases=7,
)
SHORT = Report(
    kernel="k",
    op="layernorm_bwd",
    target="m:k",
    backend="triton",
    contract=Contract(xhat="x"),
    settings=Settings(seed=3),
    environment={"device": "CPU"},
    cases=9,
    seconds=2.0,
    seconds_in_kernel=1.5,
    findings=(INFINITE_ERROR,),
    tallies=(Tally("dx", "bfloat16", 9, 54, 1, UlpStats(54, 1, 50, inf, 9.0), inf, NEGATIVE, (0, 1)),),
    checks=(CheckResult("accuracy", "right [sic]", 9, 7), CheckResult("statistics", "saved", 0, 0)),
    skipped=(Skip("output rstd", "k does not return it", 9),),
    layouts={"x transposed": 9},
)

PLAIN = Report(
    kernel="k",
    op="rmsnorm_fwd",
    target="norms:k",
    backend="torch",
    contract=Contract(),
    settings=Settings(),
    environment={},
    cases=9,
    seconds=1.5,
    seconds_in_kernel=0.5,
    findings=(),
    tallies=(),
    checks=(CheckResult("accuracy", "a", 9, 0),),
    skipped=(),
    layouts={},
)

WORST = WorstCase(50627.25, 1.25, 1.5, nan, (2, 7), SPEC)
ULPS = (
    UlpReport(
        "y",
        "float32",
        12,
        14368,
        0,
        50627.25,
        23.2,
        0.71,
        256.0,
        2435.5,
        0,
        0.448,
        -6.1,
        1.25,
        ((0.25, 300), (0.5, 700), (1.0, 0), (2.0, 40), (65536.0, 1)),
        (WORST,),
        (WORST,),
        Averages(14110, 6.03, 72.8, 1.38, 16.0),
    ),
    UlpReport(
        "y",
        "bfloat16",
        12,
        14368,
        0,
        0.5,
        0.25,
        0.3,
        0.5,
        0.5,
        0,
        1.0,
        1.2e-4,
        1.0,
        ((0.25, 300), (0.5, 700), (1.0, 20)),
        (),
        (),
        Averages(14110, 0.0, 4e-5, 1e-4, 3e-3),
    ),
    UlpReport("rstd", "float32", 12, 48, 0, inf, 8.06, 0.71, 126.6, inf, 2, 0.36, 1.74, 2.34, ((inf, 2),)),
)

RUNGS = tuple(
    Rung(value, error, ratio, {"two_pass": 0.9, "one_pass": error, "welford": 1.5}, replace(SPEC, offset=value))
    for value, error, ratio in (
        (1.0, 0.96, 0.09),
        (10.0, 152.4, 1.44),
        (100.0, 7250.9, 8.1),
        (1000.0, inf, inf),
        (1e4, nan, inf),
        (1e5, 0.0, 0.0),
        (1e6, 12.0, 0.0),
    )
)
LADDERS = (
    Ladder("offset", "offset/scale", "y", "float32", RUNGS, 10.0, ("one_pass",)),
    Ladder("offset", "offset/scale", "rstd", "float32", RUNGS[:1], None, ("two_pass", "one_pass", "welford")),
    Ladder("length", "N", "y", "float32", (), None, (), "the rung at 1 would take about 9 s"),
)


def sequential(n):
    """((0, 1), 2), …"""
    tree = 0
    for index in range(1, n):
        tree = (tree, index)
    return tree


def halves(first, n, step=1):
    """What is folded in halves."""
    return first if n == 1 else (halves(first, n // 2, 2 * step), halves(first + step, n // 2, 2 * step))


FINGERPRINT = Fingerprint(
    "onepass",
    "layernorm_fwd",
    "cpu",
    (
        undecided("fma", "both forms give the same"),
        Statement("row accumulator", "float32", "beside 2^24 a 1 is lost", 0.95),
        Statement("row accumulator", "float32", "beside 2^24 a 1 is lost", 0.95, "bfloat16"),
        Statement("row order", "folded in halves", "all agree", 0.99, tree=halves(0, 64)),
        Statement("dbias order", "folded in halves", "all agree", 0.99, tree=halves(0, 64)),
        Statement("dweight order", "sequential", "all agree", 0.99, tree=sequential(100)),
    ),
    27,
)
HEAT = (
    Heat("y", "float32", 5, 130, ((0.0, 0.25, 3.0), (1e6, inf, nan)), SPEC),
    Heat("dbias", "float32", 1, 2, ((0.5, 0.4),), SPEC),
)

AUDIT = Audit(
    REPORT,
    ULPS,
    HEAT,
    LADDERS,
    FINGERPRINT,
    ("the contract says variance=centered, and it is one_pass: off by inf",),
    (Skip("hunt", "not asked for"),),
    61.2,
)
PASSING = replace(AUDIT, report=replace(REPORT, kernel="twopass", findings=()), disagreements=())
NOTHING = replace(REPORT, findings=(), tallies=(), checks=(), cases=0, layouts={}, detectable=(), environment={})
EMPTY = Audit(NOTHING, skipped=(Skip("ladders", "the kernel was lost: it hung"),))
INFINITE = replace(
    PASSING,
    ulps=(replace(ULPS[2], maximum=inf, mean=nan, bias=-inf, ratio=inf),),
    heat=(Heat("y", "float32", 1, 1, ((inf,),), SPEC), Heat("y", "float32", 0, 0, (), SPEC)),
    ladders=(
        Ladder(
            "scale",
            "scale of x",
            "y",
            "float32",
            tuple(replace(r, error_ulp=inf, ratio=inf, textbook={"one_pass": nan}) for r in RUNGS),
            1.0,
        ),
    ),
)


def hostile():
    """An audit every text of which would take the page over, were it not escaped."""
    rungs = tuple(replace(rung, textbook={HOSTILE: rung.error_ulp, "one_pass": 1.0}) for rung in RUNGS)
    statements = (
        Statement(HOSTILE, HOSTILE, HOSTILE, 0.9, HOSTILE, tree=halves(0, 8)),
        Statement(HOSTILE, "undecided", HOSTILE, 0.0),
    )
    spec = replace(SPEC, dtype=HOSTILE, data=HOSTILE)
    finding = replace(FINDING, check=HOSTILE, output=HOSTILE, message=HOSTILE + "\ud800", spec=spec, during=HOSTILE)
    worst = replace(WORST, spec=spec)
    report = replace(
        REPORT,
        kernel=HOSTILE,
        op=HOSTILE,
        target=HOSTILE,
        bind=HOSTILE,
        findings=(finding,),
        environment={"device": HOSTILE, "date": HOSTILE, HOSTILE: HOSTILE},
        settings=Settings(dtypes=(HOSTILE,)),
        contract=replace(Contract(), stats=HOSTILE),
        checks=(CheckResult(HOSTILE, HOSTILE, 3, 1),),
        skipped=(Skip(HOSTILE, HOSTILE),),
        layouts={f"{HOSTILE} {HOSTILE}": 1},
        detectable=(Detectable(HOSTILE, HOSTILE, HOSTILE, 1, 1e-3),),
        seen=Seen(1, 1, 1, 1, {HOSTILE: 1}, {HOSTILE: 1}, {HOSTILE: 1}, {HOSTILE: {HOSTILE: 1}}, {HOSTILE: 1}),
    )
    return Audit(
        report,
        tuple(replace(u, output=HOSTILE, dtype=HOSTILE, by_ulp=(worst,), by_ratio=(worst,)) for u in ULPS),
        tuple(replace(h, output=HOSTILE, dtype=HOSTILE, spec=spec) for h in HEAT),
        tuple(
            replace(
                one,
                name=HOSTILE,
                unit=HOSTILE,
                output=HOSTILE,
                dtype=HOSTILE,
                rungs=rungs,
                like=(HOSTILE,),
                stopped=HOSTILE,
            )
            for one in LADDERS
        ),
        replace(FINGERPRINT, device=HOSTILE, statements=statements),
        (HOSTILE,),
        (Skip("rows", HOSTILE),),
    )


DOCUMENTS = {
    "audit": AUDIT,
    "report": REPORT,
    "nothing": NOTHING,
    "empty": EMPTY,
    "infinite": INFINITE,
    "hostile": hostile(),
}
