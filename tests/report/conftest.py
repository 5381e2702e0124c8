"""A run of a correct kernel that many tests compare with others, and the pages of all documents."""

from html.parser import HTMLParser

import pytest
import torch
from documents import DOCUMENTS
from runs import kernel, ran

from verify_norm.report.html.page import pages as made


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Run torch on one thread: the tensors are small, and there are many test processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def good(one_thread):
    """Return the report of a correct kernel over the corner table."""
    return ran(kernel())


class Read(HTMLParser):
    """What a browser would read: elements and their attributes, and the text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.scripts, self._inside = [], "", {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id", tag) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.text += data
        else:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data


@pytest.fixture(scope="session")
def read():
    """Return a function that reads a page."""
    return Read


@pytest.fixture(scope="session")
def pages(read):
    """Return the pages of all documents, read."""
    return {name: read(made(document)) for name, document in DOCUMENTS.items()}
