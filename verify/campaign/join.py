"""Merges the files of a campaign's shards into one."""

import json
import os
from collections.abc import Sequence

from verify_norm.campaign.model import Unit
from verify_norm.campaign.store import Store, refuse_other
from verify_norm.core.errors import UsageError


def merge(paths: Sequence[str], into: str) -> list[Unit]:
    """Enter the outcomes in these files into one, which may be new or one of them, and return the units still missing.

    A unit that has an outcome there keeps it: so a second merge changes nothing. Nothing is entered if the file cannot
    take all. Raises UsageError if the files are not of one plan and one set of versions, or one cannot be read.
    """
    facts: dict[str, str] = {}
    units: tuple[Unit, ...] = ()
    for path in paths:
        with Store.reading(path) as source:
            stored = source.facts()
            if facts:
                refuse_other(facts, stored, path)
            facts = facts or stored
            units = units or source.units()
    sources = [path for path in paths if os.path.realpath(path) != os.path.realpath(into)]
    if not facts:
        raise UsageError("expected the stores of a campaign's shards, got none")
    with Store.writing(into, units, {name: json.loads(value) for name, value in facts.items()}) as store:
        for path in sources:
            store.take(path)
        return store.pending()
