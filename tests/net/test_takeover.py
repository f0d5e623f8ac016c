"""One router takes over the listening sockets of another; a failure changes nothing."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.net.processes import takeover
from router.net.processes.takeover import Predecessor, Succession, deal
from router.web.listener import listening_sockets


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    """Two sockets for clients and one for operators."""
    sockets = [mine[0] for mine in listening_sockets("127.0.0.1", 0, 2)]
    sockets += listening_sockets("127.0.0.1", 0, 1)[0]
    yield sockets
    for each in sockets:
        each.close()


@pytest.fixture
def first(tmp_path: Path, listening: list[socket.socket]) -> Iterator[Succession]:
    """A router that runs."""
    made = Succession(tmp_path / "s", None, listening[:2], listening[2:])
    made.begin()
    yield made
    made.close()


def find(path: Path, succession: Succession) -> Predecessor:
    """The predecessor, which looks at times."""
    found: list[Predecessor | None] = []
    finding = threading.Thread(target=lambda: found.append(Predecessor.find(path)))
    finding.start()
    while finding.is_alive():
        assert not succession.poll()
    [predecessor] = found
    assert predecessor is not None
    return predecessor


def close(predecessor: Predecessor) -> None:
    """As the end of its process does."""
    for each in (*predecessor.public, *predecessor.admin, predecessor._connection):
        each.close()


def test_the_next_router_gets_the_same_sockets_and_the_old_one_is_notified(
    tmp_path: Path, first: Succession, listening: list[socket.socket]
) -> None:
    path = tmp_path / "s"
    predecessor = find(path, first)
    assert [each.getsockname() for each in predecessor.public] == [
        each.getsockname() for each in listening[:2]
    ]
    assert [each.getsockname() for each in predecessor.admin] == [listening[2].getsockname()]
    with socket.create_connection(listening[2].getsockname()):  # it waits in the old one's queue
        listening[2].close()
        accepted, _ = predecessor.admin[0].accept()
        accepted.close()
    assert not first.poll()
    second = Succession(path, predecessor, predecessor.public, predecessor.admin)
    second.begin()
    assert first.poll()
    first.close()
    third = find(path, second)  # the path is the second one's now
    close(third)
    second.close()
    assert not path.exists()
    close(predecessor)


def test_a_successor_sees_when_the_router_before_it_ends(tmp_path: Path, first: Succession) -> None:
    predecessor = find(tmp_path / "s", first)
    second = Succession(tmp_path / "s", predecessor, predecessor.public, predecessor.admin)
    assert second.is_preceded()
    first.close()
    assert not second.is_preceded()
    close(predecessor)
    assert not second.is_preceded()


def test_replaced_router_precedes_no_more(tmp_path: Path, first: Succession) -> None:
    assert not first.is_preceded()
    predecessor = find(tmp_path / "s", first)
    second = Succession(tmp_path / "s", predecessor, predecessor.public, predecessor.admin)
    second.begin()
    assert not second.is_preceded()
    second.close()
    close(predecessor)


def test_failed_successor_changes_nothing(tmp_path: Path, first: Succession) -> None:
    path = tmp_path / "s"
    failed = find(path, first)
    close(failed)
    assert not first.poll()
    again = find(path, first)
    again.replace()
    assert first.poll()
    close(again)


def test_the_first_router_finds_no_predecessor(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert Predecessor.find(path) is None
    with socket.socket(socket.AF_UNIX) as dead:  # as a killed router leaves it behind
        dead.bind(str(path))
    assert Predecessor.find(path) is None
    succession = Succession(path, None, [], [])
    succession.begin()
    succession.close()
    assert not path.exists()


def test_only_this_user_may_come(
    tmp_path: Path, first: Succession, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    assert path.stat().st_mode & 0o777 == 0o600
    mine = os.geteuid()
    monkeypatch.setattr(
        takeover, "CREDENTIALS", type("Ucred", (), {"size": 12, "unpack": lambda _: (1, mine + 1)})
    )
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        assert not first.poll()
        assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    "line", [b"", b"[1,0", b"x" * 300, b"5\n", b"[1]\n", b'{"a":1,"b":2}\n', b'["a",1]\n']
)
def test_whoever_else_listens_there_is_not_believed(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()

        def answer() -> None:
            peer, _ = other.accept()
            with peer:
                peer.sendall(line)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises((OSError, ValueError)):
            Predecessor.find(path)
        answering.join()


def test_more_sockets_than_fit_a_message_go_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: list[socket.socket]
) -> None:
    monkeypatch.setattr(takeover, "BATCH", 2)
    succession = Succession(tmp_path / "s", None, listening * 3, [])
    succession.begin()
    found = find(tmp_path / "s", succession)
    assert [each.getsockname() for each in found.public] == [
        each.getsockname() for each in listening
    ] * 3
    close(found)
    succession.close()


def test_without_a_takeover_socket_the_router_still_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    succession = Succession(tmp_path / "gone" / "s", None, [], [])
    succession.begin()
    assert "no router can take over from this one" in caplog.text
    assert not succession.poll()
    succession.close()


def test_a_failed_connection_leaves_no_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s" / "not empty").mkdir(parents=True)
    succession = Succession(tmp_path / "s", None, [], [])
    succession.begin()
    assert "no router can take over from this one" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    succession.close()


class Named:
    """A socket's name, and the copies of it."""

    def __init__(self, name: tuple[str, int]) -> None:
        self.name = name

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def dup(self) -> "Named":
        return Named(self.name)


@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=3), workers=st.integers(1, 8))
def test_each_worker_has_each_address(counts: list[int], workers: int) -> None:
    sockets = [Named((str(host), 80)) for host, count in enumerate(counts) for _ in range(count)]
    dealt = deal(sockets, workers)  # type: ignore[arg-type]
    assert len(dealt) == workers
    flat = [each for mine in dealt for each in mine]
    assert {id(each) for each in sockets} <= {id(each) for each in flat}
    assert len({id(each) for each in flat}) == len(flat)  # each worker closes what is its own
    for mine in dealt:
        assert {each.getsockname()[0] for each in mine} == {
            str(host) for host in range(len(counts))
        }
