"""Certificates of several configurations, which several processes prove."""

import pytest

from verify_norm.proof import certificate


def test_ctrl_c_ends_the_server_which_would_start_processes_later(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    ended = []
    monkeypatch.setattr(certificate, "cores", lambda: 2)
    monkeypatch.setattr(certificate, "ProcessPoolExecutor", interrupted)
    monkeypatch.setattr(certificate, "end_server", lambda: ended.append(True))
    with pytest.raises(KeyboardInterrupt):
        certificate.certificates([None, None])
    assert ended
