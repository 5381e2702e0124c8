"""What `make test` leaves to `make nightly`: a part of the cases of each sweep, never a whole sweep."""

from types import SimpleNamespace

import pytest


class Item(SimpleNamespace):
    """A test as pytest collects it."""

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, name):
        self.marks.append(getattr(pytest.mark, name).mark)


def of(function, path, count, *marks):
    return [Item(name=f"{function}[{n}]", function=function, path=path, marks=list(marks)) for n in range(count)]


def test_one_case_in_n_of_each_sweep_is_left(request):
    (conftest,) = (p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "SERIES"))
    sweeps = [of("a", "one", 10, pytest.mark.sampled(4).mark), of("a", "two", 1, pytest.mark.sampled(4).mark)]
    others = of("b", "one", 5)
    conftest.pytest_collection_modifyitems([*others, *sweeps[0], *sweeps[1]])
    left = [[item.name for item in items if not item.get_closest_marker("nightly")] for items in (*sweeps, others)]
    assert [len(names) for names in left] == [3, 1, 5]
    assert left[0] != ["a[0]", "a[4]", "a[8]"]  # which might all be forwards
