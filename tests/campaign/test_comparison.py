"""What a kernel does on two accelerators is compared: the stores of two machines, merged, say where they differ."""

from dataclasses import replace
from io import StringIO

import campaigns
import pytest
from campaigns import FACTS, outcome
from rich.console import Console

from verify_norm.campaign.accelerators import kind_of
from verify_norm.campaign.comparison import SAME
from verify_norm.campaign.join import merge
from verify_norm.campaign.store import Store
from verify_norm.campaign.summary import summarize
from verify_norm.report import campaign
from verify_norm.report.html.campaign import page

DEVICES = {"H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-80GB"}
UNITS = tuple(
    replace(unit, id=f"{kind}{unit.id}", number=2 * unit.number + place, accelerator=kind)
    for unit in campaigns.units(2)
    for place, kind in enumerate(DEVICES)
)
TRAITS = {"bits of y": "aa,bb,-", "bits of rstd": "cc,dd,ee", "row order (float32)": "tree"}


def summary(folder, other, wrong=False, left_out=()):
    """The summary of two machines' merged stores: what A100 has is `other` than what H100 has, in float32."""
    for kind, name in DEVICES.items():
        with Store.writing(str(folder / kind), UNITS, FACTS) as store:
            for unit in UNITS:
                if unit.accelerator == kind and (kind, unit.dtype) not in left_out:
                    unlike = kind == "A100" and unit.dtype == "float32"
                    found = outcome(unit, wrong=wrong and unlike)
                    report = replace(found.report, environment=found.report.environment | {"device": name})
                    store.enter(unit, replace(found, report=report, traits=other if unlike else TRAITS))
    merge([str(folder / kind) for kind in DEVICES], str(folder / "all"))
    with Store.reading(str(folder / "all")) as store:
        devices = "SELECT DISTINCT accelerator, device FROM outcomes JOIN units ON unit = id"
        assert set(store.query(devices)) <= set(DEVICES.items())
        return summarize(store)


DIFFERENCES = [
    (TRAITS, {}, ()),
    (TRAITS | {"bits of y": "aa,b0,cc"}, {}, ("y has other bits on A100 than on H100 in 1 of 2 cases",)),
    (TRAITS | {"bits of y": "-,-,cc"}, {}, ()),
    (TRAITS | {"row order (float32)": "left"}, {}, ("row order (float32): tree on H100, left on A100",)),
    ({"not compared": "it hung"}, {}, None),
    ({}, {}, None),
    (TRAITS, {"wrong": True}, ("accuracy of y fails on A100, not on H100",)),
    (TRAITS, {"left_out": {("A100", "float32")}}, ("not done on A100",)),
]


@pytest.mark.parametrize(("other", "how", "said"), DIFFERENCES)
def test_it_says_where_accelerators_differ(tmp_path, other, how, said):
    found = summary(tmp_path, other, **how)
    first, second = found.compared
    assert (first.dtype, first.accelerators, second.dtype) == ("float32", ("H100", "A100"), "bfloat16")
    assert first.differences if said is None else first.differences == said
    assert not second.differences
    out = Console(file=StringIO(), width=200, color_system=None)
    campaign.show(found, out)
    for shown in (out.file.getvalue(), page(found)):
        assert SAME in shown
        assert all(line in shown for line in said or ())


def test_a_plan_without_accelerators_compares_nothing(tmp_path):
    units = campaigns.units(2)
    with Store.writing(str(tmp_path / "s"), units, FACTS) as store:
        store.enter(units[0], outcome(units[0]))
        assert summarize(store).compared == ()


NAMES = [
    ("NVIDIA H100 80GB HBM3", "H100"),
    ("NVIDIA H200", ""),
    ("NVIDIA A100-SXM4-80GB", "A100"),
    ("AMD Instinct MI300X OAM", "AMD-Instinct-MI300X-OAM"),
    ("cpu", "CPU"),
]


@pytest.mark.parametrize(("device", "kind"), NAMES)
def test_a_device_is_the_accelerator_whose_words_its_name_has(device, kind):
    assert kind_of(device, ["H100", "A100", "A10", "AMD-Instinct-MI300X-OAM", "CPU", "-"]) == kind
