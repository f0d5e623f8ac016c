"""What the parent of several workers waits for until they serve."""

from router.commands import workers


def test_all_workers_listen_only_when_each_of_them_does() -> None:
    listening = workers._Listening(2)
    listening.report(0)
    listening.report(0)
    assert not listening.is_new()
    listening.report(1)
    listening.forget(0)  # it ended before the check
    assert not listening.is_new()
    listening.report(0)
    assert [listening.is_new(), listening.is_new()] == [True, False]
    listening.forget(1)
    listening.report(1)
    assert not listening.is_new()  # it was notified before
