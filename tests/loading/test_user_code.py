"""Code of the user may neither end the process that loads it nor pass for an error of ours."""

import faulthandler
import os
import subprocess
import sys

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.loading.user_code import blamed, staying


def test_an_exit_is_an_exception_in_the_block_alone():
    leave = os._exit
    with staying():
        kept = os._exit
        with pytest.raises(SystemExit) as ended:
            os._exit(0)
    assert ended.value.code == 0
    assert os._exit is leave
    assert kept is not leave


CHILD = """import os
from verify_norm.loading.user_code import staying
with staying():
    kept, pid = os._exit, os.fork()
    if not pid:
        os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
kept(6)
"""


def test_a_child_ends_as_it_wants_to_and_so_does_what_kept_the_name():
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], check=False).returncode == 6


def test_a_segfault_in_the_block_shows_its_line():
    code = (
        "import os, signal\nfrom verify_norm.loading.user_code import staying\n"
        "with staying():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -11
    assert 'File "<string>", line 4' in ended.stderr


@pytest.mark.parametrize("before", [False, True])
def test_the_fault_handler_is_as_it_was(before, capfd):
    was = faulthandler.is_enabled()
    try:
        (faulthandler.enable if before else faulthandler.disable)()
        with staying():
            pass
        assert faulthandler.is_enabled() == before
    finally:
        (faulthandler.enable if was else faulthandler.disable)()


def test_what_the_users_code_raises_has_its_place_and_errors_of_ours_stay():
    with (
        pytest.raises(
            UsageError, match=r"^k raises ValueError: no when it is looked at \(test_user_code.py, line \d+\)$"
        ),
        blamed("k"),
    ):
        raise ValueError("no")
    with pytest.raises(UsageError, match=r"^as it was$"), blamed("k"):
        raise UsageError("as it was")
    ours = {"__name__": "verify_norm.core"}
    exec("def f(): raise ValueError('ours')", ours)
    here = {"__name__": "torch.nn", "f": ours["f"], "blamed": blamed}
    with pytest.raises(ValueError, match="ours"):
        exec("with blamed('k'):\n    f()", here)
