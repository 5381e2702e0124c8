"""What docs/reference/stability.md promises: what an earlier version had is there, with the same values.

python tests/test_stability.py    write what is there now into stable.json, at a release
"""

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import verify_norm
from verify_norm.cli.app import app
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.known import NAMES
from verify_norm.core.only import CLAUSES
from verify_norm.core.ops import OPS
from verify_norm.core.results import SCHEMA, Report
from verify_norm.core.spec import CaseSpec
from verify_norm.search.config import KEYS

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).parent / "stable.json"


def there_is():
    """What is promised, by kind: names, each with what must not change about it."""
    group = get_command(app)
    commands = {"": group, **group.commands}
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    found = {
        "exit statuses": {status.name: int(status) for status in Exit},
        "schema": {"report": SCHEMA},
        "fields of a report": dict.fromkeys((f.name for f in fields(Report)), ""),
        "fields of a finding": dict.fromkeys((f.name for f in fields(Finding)), ""),
        "fields of a case": {f.name: "" if f.default is MISSING else repr(f.default) for f in fields(CaseSpec)},
        "fields of a contract": {f.name: repr(f.default) for f in fields(Contract)},
        "names of contracts": {name: one.fields for name, one in NAMES.items()},
        "checks": dict.fromkeys(CHECK_NAMES, ""),
        "operators": {name: [[t.name for t in op.inputs], [t.name for t in op.outputs]] for name, op in OPS.items()},
        "clauses of --only": dict.fromkeys(CLAUSES, ""),
        "settings": dict.fromkeys(KEYS, ""),
        "options": {f"{name} {flag}": "" for name, one in commands.items() for p in one.params for flag in p.opts},
        "Python": dict.fromkeys(verify_norm.__all__, ""),
        "inputs of the action": {name: one.get("default", "") for name, one in action["inputs"].items()},
        "outputs of the action": dict.fromkeys(action["outputs"], ""),
    }
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("kind", there_is())
def test_what_an_earlier_version_had_is_there(kind):
    now, before = there_is()[kind], json.loads(FILE.read_text(encoding="utf-8"))[kind]
    gone = {name: value for name, value in before.items() if name not in now or now[name] != value}
    assert not gone, f"{kind}: docs/reference/stability.md says how such a change is announced; then write {FILE.name}"


def test_nothing_that_was_promised_is_a_kind_of_its_own():
    assert json.loads(FILE.read_text(encoding="utf-8")).keys() == there_is().keys()


if __name__ == "__main__":
    FILE.write_text(json.dumps(there_is(), indent=1) + "\n", encoding="utf-8")
