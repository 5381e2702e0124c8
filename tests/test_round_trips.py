"""What is written is read back, field by field: instances are drawn from the dataclasses themselves."""

import json
import pickle
import shlex
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from instances import content, instances
from pydantic import TypeAdapter

from verify_norm.auditing.model import Audit
from verify_norm.core import known, report_text, results, serial, ways
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FLOATS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.results import Report
from verify_norm.core.spec import COTANGENTS, FAMILIES, FURTHER, LAYOUTS, WEIGHTS, CaseSpec
from verify_norm.equality.model import Equality
from verify_norm.gradcheck import report as gradcheck
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.report import documents
from verify_norm.report.compare.model import RunComparison
from verify_norm.search import corpus
from verify_norm.search.examined import Examined
from verify_norm.search.journal import Journal
from verify_norm.validation import zoo
from verify_norm.validation.certify import Certificate
from verify_norm.validation.policies import POLICIES, Verdict

few = settings(max_examples=4, deadline=None, derandomize=True, database=None, phases=(Phase.generate,),
               suppress_health_check=list(HealthCheck))  # fmt: skip
SCHEMA = {(cls, "schema"): st.just(results.SCHEMA) for cls in (Report, Audit)}  # no other one is read
NAMES = {  # fields whose values `read_spec` holds to a list
    **{
        (CaseSpec, name): st.sampled_from(FLOATS).filter("float32".__ne__)
        for name in ("dtype", "weight_dtype", "other_dtype", "residual_dtype")
    },
    **{(CaseSpec, name): st.sampled_from(LAYOUTS[1:]) for name in get_type_hints(CaseSpec) if "_layout" in name},
    (CaseSpec, "data"): st.sampled_from(FAMILIES[1:]),
    (CaseSpec, "dy_data"): st.sampled_from(COTANGENTS[1:]),
    (CaseSpec, "weight_data"): st.sampled_from(WEIGHTS[1:]),
    (CaseSpec, "frozen"): st.sampled_from((("x",), ("weight", "bias"))),
    (CaseSpec, "further"): st.sampled_from(((), *((name,) for name in FURTHER))),
    (CaseSpec, "shape"): st.sampled_from(((2, 3), (4, 0, 5), (1, 1, 7))),
    (CaseSpec, "normalized_ndim"): st.just(2),
    (CaseSpec, "batch"): st.integers(1, 9),
    (CaseSpec, "weight_offset"): st.floats(allow_nan=False, allow_infinity=False, width=32).filter(bool),
    **{(CaseSpec, name): st.sampled_from(ways.known(name)) for name in ways.WAYS},
}
SPECS = instances(CaseSpec, NAMES)


def by_type(cls):
    return TypeAdapter(cls).validate_json


DOCUMENTS = {
    Report: (documents.dump, documents.load),
    Audit: (documents.dump, lambda text: documents.load_all(text)[0]),
    Equality: (documents.dump_equality, by_type(Equality)),
    RunComparison: (documents.dump_comparison, by_type(RunComparison)),
    gradcheck.GradReport: (gradcheck.dump, by_type(gradcheck.GradReport)),
    Certificate: (lambda one: json.dumps(one.jsonable()), by_type(Certificate)),
}


@pytest.mark.parametrize("cls", DOCUMENTS, ids=lambda cls: cls.__name__)
def test_a_document_is_read_back_with_every_field(cls):
    write, read = DOCUMENTS[cls]

    @few
    @given(instances(cls, SCHEMA))
    def written(one):
        text = write(one)
        assert content(read(text)) == content(one)
        assert text.count('"schema": ') == content(one).count("'schema': ")  # a lost one is read as today's

    written()


def test_a_case_of_the_journal_is_read_back_with_every_field(tmp_path):
    @few
    @given(instances(Examined))
    def entered(one):
        journal = Journal(tmp_path / "k.jsonl", resume=False)
        journal.enter(one)
        journal.close(complete=False)
        journal = Journal(tmp_path / "k.jsonl", resume=True)
        journal.close(complete=False)
        assert list(map(content, journal.done.values())) == [content(one)]

    entered()


def test_a_replay_line_and_a_corpus_hold_every_field_of_a_case(tmp_path):
    kernel = Kernel("file.py:k", "rmsnorm_fwd")

    @few
    @given(SPECS)
    def written(spec):
        (tmp_path / "corpus").unlink(missing_ok=True)
        assert corpus.save(tmp_path / "corpus", kernel, [spec]) == 1
        assert content(corpus.load(tmp_path / "corpus", kernel)[0]) == content(spec)
        *_, replayed = shlex.split(report_text.command(kernel.name, kernel.op, spec))  # some ways have an apostrophe
        assert serial.read_spec(replayed) == (kernel.name, kernel.op, spec)
        for name in (f.name for f in fields(spec)):  # one field alone
            alone = replace(CaseSpec((3, 4)), **{name: getattr(spec, name)})
            assert serial.read_spec(serial.spec_text("k", alone)) == ("k", None, alone)

    written()


def test_an_example_is_written_with_all_that_its_run_found():
    read = {"findings": tuple[Finding, ...], "policies": dict[str, Verdict], "cases": int, "gap": str, "seconds": float}
    read["error"] = str
    assert {f.name for f in fields(zoo.Outcome)} == {*read, "example", "ended"}
    example = st.just(ZOO["A05_row_tile_unmasked"])
    policies = st.dictionaries(st.sampled_from(list(POLICIES)), instances(Verdict), min_size=1)
    drawn = {"example": example, "policies": policies, "seconds": st.floats(0.01, 1e4), "ended": st.floats(1, 1e4)}

    @few
    @given(instances(zoo.Outcome, {(zoo.Outcome, name): values for name, values in drawn.items()}))
    def written(one):
        whole = zoo.dump([one], results.Settings())
        (found,) = json.loads(json.dumps(whole))["outcomes"]
        one = replace(one, seconds=round(one.seconds, 2))
        back = {name: TypeAdapter(kind).validate_python(found[name]) for name, kind in read.items()}
        assert content(replace(one, **back)) == content(one)
        assert whole["seconds"] == round(one.ended)
        known = one.example
        facts = {"name": known.name, "op": known.kernel.op, "class": known.kind, "wrong": known.wrong}
        assert found | facts | {"source": known.source, "right": one.as_expected} == found

    written()


@few
@given(instances(Contract))
def test_a_contract_is_read_back_from_its_text(contract):
    assert known.make(known.read(known.whole(contract))) == contract


@few
@given(
    instances(Kernel, {(Kernel, name): st.just(max) for name in ("run", "forward_run", "unsupported", "fit", "later")})
)
def test_a_process_of_its_own_is_sent_every_field_of_a_kernel(kernel):
    target, record = registry.sent(kernel)
    assert target == kernel.target
    assert pickle.loads(record) == replace(kernel, run=None, forward_run=None)


def test_every_field_of_a_drawn_instance_differs_from_its_default():
    """What the tests above rest on: else a lost field would have its value."""
    plain = CaseSpec((3, 4))

    @few
    @given(SPECS)
    def drawn(spec):
        assert [f.name for f in fields(spec) if getattr(spec, f.name) == getattr(plain, f.name)] == []

    drawn()
