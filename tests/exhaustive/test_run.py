"""A run over a part of a space: what is wrong is found with its row, what is right passes, and a run can go on."""

import inspect
import json
from dataclasses import fields, replace
from itertools import count, pairwise
from types import SimpleNamespace

import jsonschema
import norms
import pairs
import pytest
import torch

from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.exhaustive import model, run, spaces
from verify_norm.exhaustive.examine import examine
from verify_norm.exhaustive.model import Choice
from verify_norm.loading import registry
from verify_norm.report import schema

EQUAL = 0x3F803F80  # the row (1, 1) of bfloat16
SMALL = 0x04000200  # a row of subnormals of float16
NAN = 0x3F807F81  # a row with a NaN that signals


def exhaust(function, op="layernorm_fwd", contract=None, most=None, **options):
    """The run of a function; `most` is the number of rows of 2 values in a part."""
    kernel = Kernel("k", op, run=function, contract=contract or Contract())
    choice = Choice(**{name: options.pop(name) for name in ("space", "dtype", "eps", "items") if name in options})
    with pytest.MonkeyPatch.context() as patch:
        if most:
            patch.setattr(run, "MOST", {"cpu": 2 * most})
        return run.exhaust(kernel, Settings(isolate=False), choice, **options)


def around(item, width=512):
    return f"{item - width}:{item + width}"


def changed(change, of=norms.layernorm):
    """A right kernel whose y is changed, by its x."""
    right = of()

    def kernel(**arguments):
        y, *others = right(**arguments)
        return (change(arguments["x"], y.clone()), *others)

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        return kernel(x=x, weight=weight, bias=bias, eps=eps, normalized_shape=normalized_shape)

    def rmsnorm_fwd(x, weight, eps, normalized_shape):
        return kernel(x=x, weight=weight, eps=eps, normalized_shape=normalized_shape)

    return layernorm_fwd if of is norms.layernorm else rmsnorm_fwd


def one_bit_pattern(x, y):
    row = x.contiguous().view(torch.int32)[:, 0] == 0x3F813F80
    bits = y.view(torch.int16)
    bits[:, 1] += row.to(torch.int16)
    return bits.view(y.dtype)


def equal_elements(x, y):
    return torch.where((x[:, :1] == x[:, 1:]), 1.0, y).to(y.dtype)


def flushed(x, y):
    return torch.where((x != 0) & (x.abs() < 2.0**-14), 0, y)


def number_of_a_nan(x, y):
    return y.nan_to_num(0.0)


def infinity_of_a_nan(x, y):
    return torch.where(y.isnan(), torch.inf, y)


def number_of_one_payload(x, y):
    return torch.where(x.contiguous().view(torch.int16)[:, :1] == 0x7F81, 0, y).to(y.dtype)


WRONG = [  # kernel, operator, type, item to look around, rule, the first wrong item, how many are wrong
    (changed(one_bit_pattern), "layernorm_fwd", "bfloat16", 0x3F813F80, "accuracy", 0x3F813F80, 1),
    (changed(equal_elements), "layernorm_fwd", "bfloat16", EQUAL, "accuracy", EQUAL, 2),
    (changed(flushed, pairs.rmsnorm), "rmsnorm_fwd", "float16", SMALL, "accuracy", SMALL - 511, None),
    (changed(number_of_a_nan), "layernorm_fwd", "bfloat16", NAN, "nonfinite", 0x3F807F80, None),
    (changed(infinity_of_a_nan), "layernorm_fwd", "bfloat16", NAN, "nonfinite", 0x3F807F81, None),
    (changed(number_of_one_payload), "layernorm_fwd", "bfloat16", NAN, "nonfinite", NAN, 2),
]


@pytest.mark.parametrize(
    ("kernel", "op", "dtype", "item", "rule", "first", "wrong"), WRONG, ids=[str(row[5]) + row[4] for row in WRONG]
)
def test_what_is_wrong_in_few_rows_is_found_with_its_row(kernel, op, dtype, item, rule, first, wrong):
    found = exhaust(kernel, op, items=around(item), dtype=dtype)
    assert found.verdict is Exit.FINDINGS
    (violation,) = (one for one in found.violations if one.output == "y")
    assert (violation.rule, violation.output, violation.elements[0].item) == (rule, "y", first)
    assert wrong is None or violation.count == wrong
    again = exhaust(kernel, op, items=f"{first}:{first + 1}", dtype=dtype)  # as its replay line says
    assert repr(again.violations[0].elements[0]) == repr(violation.elements[0])  # NaN is not NaN
    assert f"{first:#010x}"[-4:] in violation.elements[0].given
    right = norms.layernorm() if op == "layernorm_fwd" else pairs.rmsnorm()
    assert exhaust(right, op, items=around(item), dtype=dtype).verdict is Exit.PASS


RIGHT = [
    (norms.layernorm("float64"), "layernorm_fwd", {}),
    (norms.layernorm("welford"), "layernorm_fwd", {}),
    (norms.layernorm("shifted"), "layernorm_fwd", {"contract": Contract(variance="shifted")}),
    (pairs.rmsnorm("another payload"), "rmsnorm_fwd", {}),
    (pairs.rmsnorm("y alone"), "rmsnorm_fwd", {"space": "rows4"}),
    (norms.layernorm("guard"), "layernorm_fwd", {"eps": 0.0}),
    (norms.layernorm_bwd(), "layernorm_bwd", {"space": "rows4_e5m2", "dtype": "fp16"}),
    (norms.layernorm_bwd("recomputed"), "layernorm_bwd", {}),
]
PLACES = (0, EQUAL, 0x3F7F3F80, 0x7F7F7F00, NAN, 0xFF7FFF00)


@pytest.mark.parametrize(("kernel", "op", "options"), RIGHT, ids=[str(i) for i in range(len(RIGHT))])
def test_a_right_kernel_passes_also_where_numbers_are_extreme(kernel, op, options):
    runs = [exhaust(kernel, op, items=f"{item}:{item + 256}", **options) for item in PLACES]
    assert [line for found in runs for line in found.lines()] == []
    assert all(found.complete for found in runs)
    assert sum(found.judged for found in runs) > 512


def test_every_x_of_batchnorm_is_all_of_it_and_one_wrong_x_is_found():
    kernel = registry.load("batchnorm_fwd_torch")
    settings = Settings(isolate=False)
    found = run.exhaust(kernel, settings, Choice())
    assert found.verdict is Exit.PASS, list(found.lines())
    assert found.scope == "all 65,536 bfloat16 values of x, in each of 8 channels of fixed statistics"
    assert [(one.output, one.elements) for one in found.tallies] == [("y", 8 * 65536)]
    right = kernel.run

    def wrong(x, **others):
        y = right(x=x, **others)
        y, *rest = y if isinstance(y, tuple) else (y,)
        y = torch.where(x == -torch.inf, -y, y)
        return (torch.where(x == -3.0, 0, y), *rest)

    wrong.__signature__ = inspect.signature(right)
    found = run.exhaust(replace(kernel, run=wrong), settings, Choice())
    rules = [(one.rule, one.count, one.elements[0].item) for one in found.violations]
    assert rules == [("accuracy", 8, 0xC040), ("nonfinite", 8, 0xFF80)]


def test_an_eps_that_is_treated_otherwise_is_found():
    options = {"op": "rmsnorm_fwd", "space": "eps", "items": "30000:30020", "dtype": "fp32"}
    assert exhaust(pairs.rmsnorm(), **options).verdict is Exit.PASS
    found = exhaust(
        lambda x, weight, eps, normalized_shape: pairs.rmsnorm()(x, weight, 1e-5, normalized_shape), **options
    )
    assert {one.output for one in found.violations} == {"y", "rstd"}
    assert found.violations[0].elements[0].given.startswith("eps ")
    worst = found.tallies[0].worst
    assert worst.eps == spaces.every_eps()[found.tallies[0].index[0]]


def test_parts_of_any_size_and_a_run_that_goes_on_give_the_same(tmp_path, monkeypatch):
    path = str(tmp_path / "r.json")
    options = {"op": "rmsnorm_fwd", "eps": 0.5, "items": around(0x3F813F80, 1000)}
    function = pairs.rmsnorm("rounded")
    whole = exhaust(function, most=2000, **options)
    assert whole.violations[0].count > 3 == len(whole.violations[0].elements)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=count().__next__))
    first = exhaust(function, most=300, seconds=12, resume=path, **options)
    assert first.ended == "the time limit of 12 s was reached"
    assert first.asked.first < first.done < first.asked.last
    assert "all" not in first.scope
    at_least = exhaust(function, most=100, seconds=0.5, resume=path, **options)
    assert at_least.done == first.done + 100  # one part
    monkeypatch.undo()
    second = exhaust(function, most=177, resume=path, **options)
    assert second.complete
    for one, other in zip(whole.tallies, second.tallies, strict=True):
        assert one.ulp.histogram == other.ulp.histogram
        assert one.ulp.total == pytest.approx(other.ulp.total)
        assert one == replace(other, ulp=one.ulp, cases=one.cases)
        assert one.worst is None, "no spec holds the rows"
    assert second.violations == whole.violations
    assert exhaust(function, resume=path, **options) == second, "all is done: nothing runs"
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["complete"], document["all"], document["verdict"]) == (True, False, "FINDINGS")
    assert not list(jsonschema.Draft202012Validator(schema.schema("exhaust")).iter_errors(document))


def test_ctrl_c_keeps_what_is_done(tmp_path):
    path = str(tmp_path / "r.json")

    def progress(found, rate):
        if found.done == 300:
            raise KeyboardInterrupt

    found = exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items="0:1000", most=100, resume=path, progress=progress)
    assert (found.done, found.ended, found.verdict) == (300, "the run was interrupted", Exit.INCOMPLETE)
    assert exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items="0:1000", most=100, resume=path).verdict is Exit.PASS


def test_parts_grow_while_they_take_little_time(monkeypatch):
    ends = [0]
    monkeypatch.setattr(run, "QUICK", 1e9)
    monkeypatch.setattr(run, "MOST", {"cpu": 2**13})
    exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items="0:9000", progress=lambda found, rate: ends.append(found.done))
    sizes = [stop - start for start, stop in pairwise(ends)]
    assert sizes == [1024, 2048, 4096, 1832]


def test_a_kernel_that_raises_or_returns_another_type_ends_the_run_which_can_be_tried_again(tmp_path):
    path = str(tmp_path / "r.json")
    found = exhaust(pairs.rmsnorm("raises"), "rmsnorm_fwd", items="0:50", resume=path)
    assert (found.done, found.problem, found.verdict) == (0, "ValueError: at most 3 rows", Exit.FINDINGS)
    assert exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items="0:50", resume=path).verdict is Exit.PASS
    found = exhaust(pairs.rmsnorm("half"), "rmsnorm_fwd", items="0:50")
    assert found.problem == "rstd: expected float32, got float16"


def test_an_item_with_a_problem_is_not_counted_twice(tmp_path):
    path, bad = str(tmp_path / "r.json"), [spaces.every_eps()[30004]]
    options = {"op": "rmsnorm_fwd", "space": "eps", "dtype": "fp32", "items": "30000:30006", "resume": path}

    def late(x, weight, eps, normalized_shape):
        if eps in bad:
            raise ValueError("not this eps")
        return pairs.rmsnorm()(x, weight, eps, normalized_shape)

    assert exhaust(late, **options).problem == "ValueError: not this eps"
    bad.clear()
    found = exhaust(late, **options)
    assert (found.verdict, found.tallies[0].cases) == (Exit.PASS, 6)


def test_what_is_asked_names_the_whole_space_and_the_users_options():
    kernel = Kernel("k", "layernorm_fwd", run=norms.layernorm(), target="k.py:k")
    settings = Settings(contract="llama", only="N <= 8")
    wholes = {"": True, "0:": True, "1:": False, ":9": False, "3:9": False}
    for items, whole in wholes.items():
        asked = run.question(kernel, settings, Choice(space="rows2", dtype="bf16", items=items))
        assert (asked.whole, asked.options) == (whole, ("llama", "N <= 8"))
    element = model.Element(3, (1,), "", 0.0, 1.0, 2.0, 0.5)
    command = model.replay(asked, element)
    assert all(words in command for words in ("--items 3:4", "--contract llama", "--only 'N <= 8'"))


def test_a_kernel_that_refuses_the_space_is_no_finding(monkeypatch):
    monkeypatch.setattr(run, "examine", lambda *_: model.Part(problem="no GPU here", refused=True))
    with pytest.raises(UsageError, match="no GPU here"):
        exhaust(norms.layernorm(), items=":9")


def test_what_nobody_can_judge_is_no_pass():
    found = exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items=f"{0x7F807F80}:{0x7F807F90}")
    assert (found.judged, found.verdict) == (0, Exit.NOTHING)


ON_DEVICES = [
    (changed(equal_elements), "layernorm_fwd", "rows2", EQUAL),
    (norms.layernorm_bwd("no c2"), "layernorm_bwd", "rows4", EQUAL),
    (pairs.rmsnorm_bwd(), "rmsnorm_bwd", "rows2", NAN),
    ("add_layernorm_fwd", "", "rows2", 0x7F7F7F80),
    ("groupnorm_fwd_torch", "", "rows4", EQUAL),
    ("batchnorm_fwd_torch", "", "x", 0x7F80),
    ("instancenorm_bwd_torch", "", "eps", 30000),
]


@pytest.mark.parametrize(("function", "op", "space", "item"), ON_DEVICES, ids=[str(row[1:]) for row in ON_DEVICES])
def test_truth_in_a_devices_memory_gives_the_same(function, op, space, item, monkeypatch):
    kernel = Kernel("k", op, run=function) if op else registry.load(function)
    if kernel.name == "groupnorm_fwd_torch":
        kernel = replace(kernel, contract=replace(kernel.contract, stats="x"))  # as torch saves them on a CPU
    asked = run.question(kernel, Settings(), Choice(space, "bf16"))
    few = 150 if asked.space != "eps" else 2
    here = examine(kernel, asked, item - few, item + few, "cpu")
    monkeypatch.setattr(make, "JUDGES", {"cpu"})
    monkeypatch.setattr(make, "LARGE", 0)
    there = examine(kernel, asked, item - few, item + few, "cpu")
    assert (here.problem, here.refused) == (there.problem, False)
    assert [(v.rule, v.output, v.count) for v in there.violations] == [
        (v.rule, v.output, v.count) for v in here.violations
    ]
    assert [(t.output, t.elements, t.unjudged) for t in there.tallies] == [
        (t.output, t.elements, t.unjudged) for t in here.tallies
    ]
    assert [t.ratio for t in there.tallies] == pytest.approx([t.ratio for t in here.tallies], rel=1e-3)
    assert here.tallies


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "r.json"
    exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items="0:50", resume=str(path))
    return path


OTHERS = [
    ({"items": "0:60"}, "it has last = 50, here it is 60"),
    ({"eps": 0.5, "items": "0:50"}, "it has eps = 1e-05, here"),
]


@pytest.mark.parametrize(("options", "said"), OTHERS)
def test_the_file_of_another_run_is_refused(stored, options, said):
    with pytest.raises(UsageError, match=said):
        exhaust(pairs.rmsnorm(), "rmsnorm_fwd", resume=str(stored), **options)


def test_a_run_goes_on_where_all_that_was_asked_and_the_machine_are_the_same(tmp_path):
    """Whatever differs is named; another day is no difference."""
    path = tmp_path / "r.json"
    kernel = Kernel("k", "layernorm_fwd", run=norms.layernorm())
    asked, here = run.question(kernel, Settings(), Choice(items="0:9")), {"torch": "2", "date": "1"}
    found = model.Exhausted(asked, here, 5)
    path.write_text(run.dump(found))
    assert run.stored(str(path), asked, {"torch": "2", "date": "2"}) == found
    others = {"contract": Contract(xhat="x"), "options": ("", "N <= 8"), "first": 1, "last": 8, "count": 9, "eps": 0.5}
    for field in fields(model.Asked):
        other = replace(asked, **{field.name: others.get(field.name, "another")})
        with pytest.raises(UsageError, match=f"is of another run: it has {field.name} = "):
            run.stored(str(path), other, here)
    with pytest.raises(UsageError, match="it has torch = 2, here it is 3"):
        run.stored(str(path), asked, {"torch": "3"})


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1}', "[" * 20000, '{"kernel": "k", "schema": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match="not the result of an exhaustive run"):
        exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items="0:50", resume=str(tmp_path / "r.json"))


@pytest.mark.parametrize("items", ["5", "5:5", "a:b", "-1:4", "0:4294967297", "7:3"])
def test_items_that_are_not_there_are_refused(items):
    with pytest.raises(UsageError, match=f"expected FIRST:LAST with 0 <= FIRST < LAST <= 4294967296, got {items}"):
        exhaust(pairs.rmsnorm(), "rmsnorm_fwd", items=items)


def test_a_cpu_says_how_long_it_would_take(monkeypatch):
    monkeypatch.setattr(run, "TRIED", 0.0)
    with pytest.raises(UsageError, match=r"rows of 2 bfloat16 values would take \d+ (min|h) on this CPU: --s"):
        exhaust(pairs.rmsnorm(), "rmsnorm_fwd")
    found = exhaust(pairs.rmsnorm(), "rmsnorm_fwd", seconds=0.1)
    assert (found.ended, found.verdict) == ("the time limit of 0.1 s was reached", Exit.INCOMPLETE)
