"""The corpus keeps the worst cases of each kernel, newest first."""

import errno
import json
import os
from dataclasses import replace

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import CaseSpec
from verify_norm.search import corpus

RIGHT, WRONG = Kernel("right", "layernorm_fwd"), Kernel("wrong", "layernorm_fwd")


def test_a_missing_file_has_no_cases_and_no_case_is_kept_twice(tmp_path):
    path, spec = tmp_path / "corpus.jsonl", CaseSpec((2, 3))
    assert corpus.load(path, RIGHT) == ()
    assert corpus.save(path, RIGHT, [spec, spec]) == 1
    assert corpus.load(path, RIGHT) == (spec,)


def test_the_corpus_keeps_other_kernels_and_the_newest_first(tmp_path):
    path = tmp_path / "corpus.jsonl"
    specs = [CaseSpec((2, n), seed=n) for n in range(1, 60)]
    corpus.save(path, RIGHT, specs[:2])
    corpus.save(path, WRONG, specs)
    assert corpus.load(path, RIGHT) == tuple(specs[:2])
    assert corpus.load(path, WRONG) == tuple(specs[: corpus.MOST])
    corpus.save(path, WRONG, specs[-1:])
    assert corpus.load(path, WRONG) == (specs[-1], *specs[: corpus.MOST - 1])
    assert all(json.loads(line)["op"] == "layernorm_fwd" for line in path.read_text().splitlines())
    gradient = replace(WRONG, op="layernorm_bwd")
    assert corpus.load(path, gradient) == ()


@pytest.mark.parametrize("text", ["{", '{"kernel": "k"}', '{"kernel": "k", "shape": [2], "colour": 1}'])
def test_a_file_that_is_no_corpus_is_a_usage_error_and_stays_as_it_is(tmp_path, text):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"kernel": "k", "op": "layernorm_fwd", "shape": [2, 3]}\n' + text + "\n")
    for act in (lambda: corpus.load(path, RIGHT), lambda: corpus.save(path, RIGHT, [CaseSpec((2, 3))])):
        with pytest.raises(UsageError, match="line 2 of the corpus"):
            act()
    assert text in path.read_text()
    with pytest.raises(UsageError, match="cannot"):
        corpus.save(tmp_path / "no" / "where", RIGHT, [CaseSpec((2, 3))])
    with pytest.raises(UsageError, match="cannot read"):
        corpus.load(tmp_path, RIGHT)


def test_a_file_that_cannot_be_read_says_why_in_a_few_words(tmp_path):
    with pytest.raises(UsageError) as caught:
        corpus.load(tmp_path, RIGHT)
    assert str(caught.value).endswith(f"{tmp_path}: {os.strerror(errno.EISDIR)}")
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\xff\x00")
    with pytest.raises(UsageError, match=r"corpus\.jsonl: .*utf-8.*0xff"):
        corpus.load(path, RIGHT)


def test_a_name_of_any_letters_and_lines_of_any_system_are_read(tmp_path):
    path, kernel = tmp_path / "corpus.jsonl", Kernel("größe", "layernorm_fwd")
    corpus.save(path, kernel, [CaseSpec((2, 3)), CaseSpec((2, 4))])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert corpus.load(path, kernel) == (CaseSpec((2, 3)), CaseSpec((2, 4)))
