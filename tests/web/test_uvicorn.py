"""What the router uses of uvicorn's server that is no public interface. A version without it is not
admitted: pyproject.toml names the versions that these tests ran with."""

import inspect

import uvicorn
from uvicorn.server import ServerState


def test_a_server_state_holds_connections_and_tasks() -> None:
    state = ServerState()
    assert (state.connections, state.tasks) == (set(), set())


def test_a_server_is_started_and_ended_by_these_methods() -> None:
    for name in ("startup", "shutdown", "main_loop"):
        assert inspect.iscoroutinefunction(getattr(uvicorn.Server, name)), name
    assert list(inspect.signature(uvicorn.Server.startup).parameters) == ["self", "sockets"]
    assert list(inspect.signature(uvicorn.Server.shutdown).parameters) == ["self", "sockets"]
    assert list(inspect.signature(uvicorn.Server.handle_exit).parameters) == [
        "self",
        "sig",
        "frame",
    ]
    assert list(inspect.signature(uvicorn.Server.capture_signals).parameters) == ["self"]


def test_a_server_has_these_flags() -> None:
    server = uvicorn.Server(uvicorn.Config("nowhere:app", log_config=None))
    assert (server.started, server.should_exit, server.force_exit) == (False, False, False)
    assert isinstance(server.server_state, ServerState)


def test_a_configuration_makes_a_lifespan() -> None:
    async def app(_scope: object, _receive: object, _send: object) -> None:
        """Nothing."""

    config = uvicorn.Config(app, lifespan="on", log_config=None)
    config.load()
    lifespan = config.lifespan_class(config)
    assert lifespan.should_exit is False
    assert inspect.iscoroutinefunction(lifespan.startup)
    assert inspect.iscoroutinefunction(lifespan.shutdown)
