"""What runs in others' CI: the steps of action.yml and the hook of pre-commit, as their programs would run them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import samples
import yaml

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RIGHT = """
import torch
def rms_norm(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""
WRONG = RIGHT.replace(".to(x.dtype)", ".double()")  # another type: a finding that costs no search for its contract
FAST = "--checks signature --examples 0 --seconds 3 --dtype fp32 --device cpu --only 'ndim=2, contiguous'"


def run(command, folder, **environment):
    """Run a program as GitHub's runner does; return its status and all that it prints."""
    known = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), "RUNNER_TEMP": str(folder)}
    known |= {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    done = subprocess.run(command, cwd=folder, env=known | environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def step(name, folder, inputs, **environment):
    """Run a step of action.yml with these inputs, the others at their defaults; return status, output and outputs."""
    given = {key: one.get("default", "") for key, one in ACTION["inputs"].items()} | inputs
    assert given.keys() == ACTION["inputs"].keys()
    values = {f"inputs.{key}": value for key, value in given.items()} | {"github.action_path": str(ROOT)}
    env = {k: re.sub(r"\$\{\{ (.*?) \}\}", lambda m: values[m[1]], v) for k, v in STEPS[name]["env"].items()}
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    (folder / "step.sh").write_text(STEPS[name]["run"])
    (folder / "GITHUB_OUTPUT").write_text("")
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
    status, said = run(bash, folder, **env, **files, **environment)
    written = (folder / "GITHUB_OUTPUT").read_text().splitlines()
    return status, said, dict(line.split("=", 1) for line in written)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_action_ends_with_the_status_of_the_run_and_names_its_files(tmp_path):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    own = {"op": "rmsnorm_fwd", "arguments": FAST, "allow-incomplete": "true"}
    status, said, right = step("Verify", tmp_path, own | {"kernels": "\n  a folder/right.py:rms_norm  \n\n"})
    assert (status, right["status"]) == (0, "0"), said
    assert {name: Path(right[name]).suffix for name in ("json", "junit", "html")} == {
        "json": ".json",
        "junit": ".xml",
        "html": ".html",
    }
    summary = tmp_path / "GITHUB_STEP_SUMMARY"
    assert "### ✅ PASS `a folder/right.py:rms_norm`" in summary.read_text(encoding="utf-8")
    assert right.keys() == ACTION["outputs"].keys()

    kernels = {"kernels": "a folder/right.py:rms_norm\nwrong.py:rms_norm", "extras": "cli", "baseline": right["json"]}
    status, said, both = step("Verify", tmp_path, own | kernels)
    assert (status, both["status"]) == (1, "1"), said
    suites = {suite.get("name"): suite for suite in ElementTree.parse(both["junit"]).getroot()}
    failures = {name: int(suite.get("failures")) for name, suite in suites.items()}
    assert failures.pop("wrong.py:rms_norm (rmsnorm_fwd)") > 0
    assert failures == {"a folder/right.py:rms_norm (rmsnorm_fwd)": 0, "baseline": 0}
    assert "❌ FAIL `wrong.py:rms_norm`" in summary.read_text(encoding="utf-8")
    assert both.keys() == right.keys() - {"html"}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"kernels": " \n"}, "expected a kernel"),
        ({"kernels": "layernorm_fwd", "arguments": "--dtype 'fp32"}, "a quote has no end"),
        ({"kernels": "layernorm_fwd", "arguments": "--dtyp fp32"}, "--dtyp"),
        ({"kernels": "layernorm_fwd", "baseline": "none.json"}, "there is no baseline none.json"),
        ({"kernels": "$(touch hacked)", "op": "`touch hacked`"}, "unknown kernel '$(touch hacked)'"),
    ],
)
def test_a_mistake_in_the_inputs_is_status_2(inputs, words, tmp_path):
    status, said, outputs = step("Verify", tmp_path, {"extras": "cli"} | inputs)
    assert (status, outputs.get("status", "2"), words in said) == (2, "2", True), said
    assert outputs.keys() <= {"status"}
    assert not (tmp_path / "hacked").exists()


def test_the_action_installs_itself_with_the_extras(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text('#!/bin/sh\nprintf "%s|" "$@" >> installed\necho >> installed\n')
    (programs / "python").chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    step("Install verify-norm", tmp_path, {"torch-index": "https://example.org/cpu"}, PATH=path)
    step("Install verify-norm", tmp_path, {"extras": "cli"}, PATH=path)
    assert (tmp_path / "installed").read_text().splitlines() == [
        "-m|pip|install|torch|--index-url|https://example.org/cpu|",
        f"-m|pip|install|{ROOT}[cli,html,triton]|",
        f"-m|pip|install|{ROOT}[cli]|",
    ]


def test_no_input_becomes_a_part_of_a_script():
    for text in [step["run"] for step in STEPS.values() if "run" in step]:
        assert "${{" not in text
    for path in WORKFLOWS:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        assert not [step["run"] for job in jobs.values() for step in job["steps"] if "${{" in step.get("run", "")]


def test_the_workflows_of_the_pages_give_inputs_that_there_are():
    blocks = [block for page in samples.pages() for block in samples.blocks(page.read_text(encoding="utf-8"))]
    found = [yaml.safe_load(block.text) for block in blocks if block.language == "yaml"]
    jobs = [job for one in found if "jobs" in one for job in one["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"] if "verify-norm@" in step.get("uses", "")]
    assert steps
    for one in steps:
        assert one["with"].keys() <= ACTION["inputs"].keys()
        outputs = re.findall(r"steps\.(\w+)\.outputs\.(\w+)", str(jobs))
        assert all(name in ACTION["outputs"] for _, name in outputs)
    hooks = [hook for one in found for repo in one.get("repos", ()) for hook in repo["hooks"]]
    assert [hook["id"] for hook in hooks] == [HOOK["id"]]


def test_pytest_has_the_options_of_the_workflows_of_the_pages(request):
    texts = [page.read_text(encoding="utf-8") for page in samples.pages()]
    lines = [line for text in texts for line in re.findall(r"\bpytest\b.*--norm-.*", text)]
    assert any(line.startswith("pytest tests --norm-baseline baseline.json") for line in lines)
    for name in {name for line in lines for name in re.findall(r"--norm-[a-z-]+", line)}:
        request.config.getoption(name)  # raises ValueError for an unknown one


def hook(folder, *files, arguments=None):
    """Run the hook as pre-commit does: its entry, its arguments, then the files that match."""
    assert HOOK["language"] == "system"
    chosen = [file for file in files if not re.search(HOOK["exclude"], file)]
    return run([*shlex.split(HOOK["entry"]), *(arguments or HOOK["args"]), *chosen], folder)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_hook_skips_what_defines_nothing_and_refuses_what_has_no_norm(tmp_path):
    (tmp_path / "__init__.py").write_text("from math import sqrt\nEPS = 1e-5\n")
    (tmp_path / "helpers.py").write_text("def cdiv(a, b): return -(-a // b)\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    cases = (
        (("__init__.py", "test_norms.py"), 0, "__init__.py defines nothing to call: not checked"),
        (("helpers.py",), 2, "no function and no class has the name of a norm"),
        (("broken.py",), 2, "broken.py cannot be imported: SyntaxError"),
    )
    for files, status, words in cases:
        got, said = hook(tmp_path, *files)
        assert (got, words in said) == (status, True), said


@pytest.mark.nightly
@pytest.mark.slow
def test_the_hook_finds_a_wrong_kernel_in_the_files(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT.replace("rms_norm", "rmsnorm_fwd"))
    (tmp_path / "wrong.py").write_text(WRONG.replace("rms_norm", "rmsnorm_fwd"))
    fast = [*HOOK["args"], *shlex.split(FAST)]
    assert HOOK["args"] == ["--examples", "0", "--seconds", "20", "--allow-incomplete"]
    status, said = hook(tmp_path, "right.py", "wrong.py", arguments=fast)
    assert (status, "PASS right.py:rmsnorm_fwd" in said, "FAIL wrong.py:rmsnorm_fwd" in said) == (1, True, True), said


def test_a_release_publishes_the_files_that_were_built_and_tested():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    scripts = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert [name for name, lines in scripts.items() if any("-m build" in line for line in lines)] == ["build"]
    assert scripts["publish"] == []
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
    allowed = {name: job.get("permissions") for name, job in jobs.items()}
    assert allowed == {"build": None, "test": None, "publish": {"id-token": "write"}}
    (tag,) = [step["run"] for step in jobs["build"]["steps"] if step.get("name") == "The tag is the version"]
    assert "${GITHUB_REF_NAME#v}-py3-none-any.whl" in tag
    (command,) = [line for line in scripts["test"] if line.startswith("verify-norm")]
    assert samples.mistakes(f"```sh\n{command}\n```\n") == []
