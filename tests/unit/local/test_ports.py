from __future__ import annotations

import socket

import pytest

from airflow_aiptraining.local import ports
from airflow_aiptraining.local.ports import NoFreePortError, Ports


def test_ports_are_free_and_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    low = 25_000
    monkeypatch.setattr(ports, "_range", lambda: (low, low + 40))
    in_use = {low, low + 1}
    given = Ports(lambda: in_use)

    with given.held(15) as one, given.held(15) as two:
        assert len({*one, *two, *in_use}) == 32
        with pytest.raises(NoFreePortError, match=r"20 free ports .* 25000 and 25039"):
            given.held(20).__enter__()
    for port in one:
        with socket.socket() as taken:
            taken.bind((ports.HOST, port))
    with given.held(15) as again:
        assert not {*again} & in_use


def test_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(ports, "_range", lambda: (port, port + 1))

        with pytest.raises(NoFreePortError), Ports(set).held(1):
            pass


def test_ports_are_not_those_of_connections() -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        low, high = ports._range()

        assert not low <= server.getsockname()[1] < high
