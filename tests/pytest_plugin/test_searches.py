"""A search is the command line in another process: what it is asked, and what its end says."""

import sys
from types import SimpleNamespace

import pytest

from verify_norm.pytest_plugin import searches
from verify_norm.pytest_plugin.items import OPTIONS, NormKernel

NOTHING = dict.fromkeys((*OPTIONS.values(), "norm_device"))


def config(path, worker="", **options):
    option = SimpleNamespace(**(NOTHING | options))
    return SimpleNamespace(option=option, rootpath=path, workerinput={"workerid": worker})


@pytest.fixture
def asked(monkeypatch):
    """The arguments of every command that would run; each ends with a mistake."""
    commands = []

    def run(arguments):
        commands.append(arguments)
        return 2, "a kernel prints\nverify-norm: unknown kernel 'k'\nand prints\n"

    monkeypatch.setattr(searches, "_run", run)
    return commands


def test_only_what_is_given_overrides_the_command(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"norm_examples": 0, "norm_device": "auto", "norm_allow_incomplete": True}
    search = searches.Searches(config(tmp_path, "gw3", **options), None)
    wanted = {"accuracy": "a factor", "signature": None}
    answer = search.of(NormKernel("norms.py:k", "rmsnorm_fwd", "eps=1e-6"), wanted)
    assert answer == {"target": "norms.py:k", "expected": {"accuracy": "a factor"}, "error": "unknown kernel 'k'"}
    (command,) = asked
    kernel = ["--kernel=norms.py:k", "--op=rmsnorm_fwd", "--bind=eps=1e-6", "--checks=signature,accuracy"]
    more = ["--examples=0", "--device=auto", "--allow-incomplete", "--worker=3"]
    assert sorted(command[:-1]) == sorted(["--no-config", *kernel, *more])
    assert command[-1].startswith("--json=")


def test_a_contract_of_the_decorator_wins_over_the_option(asked, tmp_path):
    search = searches.Searches(config(tmp_path, norm_contract="llama"), None)
    for contract in ("", "vllm,lanes=8"):
        search.of(NormKernel("norms:k", contract=contract), {"accuracy": None})
    assert [[part for part in command if part.startswith("--contract")] for command in asked] == [
        ["--contract=llama"],
        ["--contract=vllm,lanes=8"],
    ]


def test_certificates_are_given_to_the_kernels_that_they_are_of(asked, tmp_path):
    path = tmp_path / "saved.json"
    path.write_text('[{"kernel": "norms.py:k"}]', encoding="utf-8")
    search = searches.Searches(config(tmp_path, norm_certificate=str(path)), None)
    for target in ("other.py:k", "norms.py:other"):
        search.of(NormKernel(target), {"accuracy": None})
    given = [[part for part in command if part.startswith("--certificate")] for command in asked]
    assert given == [[f"--certificate={path}"], []]


def test_the_table_of_the_project_holds_for_what_is_not_given(asked, tmp_path):
    table = '[tool.verify-norm]\nexamples = 60\nseconds = 9.0\nonly = "N%8=0"\ndtypes = ["bf16"]\nhtml = "page.html"\n'
    (tmp_path / "pyproject.toml").write_text(table)
    searches.Searches(config(tmp_path, norm_seconds=3.0), None).of(
        NormKernel("norms:k", only="ndim=2"), {"accuracy": None}
    )
    (command,) = asked
    assert {"--examples=60", "--seconds=3.0", "--only=ndim=2", "--dtype=bfloat16"} <= set(command)
    assert not any(part.startswith("--html") for part in command)
    (tmp_path / "pyproject.toml").write_text("[tool.verify-norm]\nexampels = 60\n")
    answer = searches.Searches(config(tmp_path), None).of(NormKernel("norms:k"), {"accuracy": None})
    assert "unknown key 'exampels' (did you mean examples?)" in answer["error"]


def test_a_module_that_the_tests_alone_can_import_is_named_by_its_file(asked, tmp_path, monkeypatch):
    (tmp_path / "src" / "mypkg").mkdir(parents=True)
    for name in ("__init__", "norms"):
        (tmp_path / "src" / "mypkg" / f"{name}.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    located = searches.Searches(config(tmp_path), None)._located
    assert located("mypkg.norms:k") == "src/mypkg/norms.py:k"
    assert located("torch.nn:RMSNorm") == "torch.nn:RMSNorm"
    monkeypatch.chdir(tmp_path / "src")
    assert located("mypkg.norms:k") == "mypkg.norms:k"


def test_a_kernel_is_searched_once_by_all_workers(asked, tmp_path):
    one, other = (searches.Searches(config(tmp_path, worker), str(tmp_path)) for worker in ("gw0", "gw1"))
    kernel = NormKernel("norms:k")
    assert one.of(kernel, {"accuracy": None}) == one.of(kernel, {"accuracy": None})
    assert other.of(kernel, {"accuracy": None}) == one.answers[kernel]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (7, "", "norms:k ended the process that searched it, with exit status 7"),
        (2, "nothing of ours", "norms:k ended the process that searched it, with exit status 2"),
        (-11, "", "norms:k ended the process that searched it, with exit status -11"),
        (70, "verify-norm: internal error: KeyError: 1; report it", "internal error: KeyError: 1; report it"),
        (1, "Traceback (most recent call last):\nTypeError: no", "verify-norm itself failed: TypeError: no"),
    ],
)
def test_an_end_without_a_report_is_one_line(status, said, reason):
    assert searches._reason("norms:k", status, said) == reason


@pytest.mark.slow
def test_a_device_that_is_not_there_is_an_error(tmp_path):
    search = searches.Searches(config(tmp_path, norm_device="cuda:99"), None)
    assert search.of(NormKernel("rmsnorm_fwd"), {"accuracy": None})["error"].startswith("no device cuda:99: ")


def test_the_process_has_the_import_path_of_the_tests(tmp_path, monkeypatch, capsys):
    shell = tmp_path / "python"
    shell.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\nexit 3\n')
    shell.chmod(0o755)
    monkeypatch.setattr(sys, "path", ["", "/one/folder", "/another"])
    monkeypatch.setattr(sys, "executable", str(shell))
    assert searches._run(["--version"]) == (3, "/one/folder:/another -P -m verify_norm --version\n")
    assert capsys.readouterr().err == "/one/folder:/another -P -m verify_norm --version\n"
