"""How engines fail before they have answered."""

from collections.abc import Callable

from tests.net.engine import Call, Connection, ScriptedEngine, json_reply

FULL = {"error": {"message": "full", "type": "T", "param": None, "code": 503}}
BUSY = json_reply(FULL, 503)
BUSY_FOR_LONG = json_reply(FULL, 503, b"Retry-After: 60")

Fault = Callable[[ScriptedEngine], None]


def refuses(engine: ScriptedEngine) -> None:
    """No connection comes about."""
    engine.refuse()


def resets_new_connections(engine: ScriptedEngine) -> None:
    """As a proxy in front of a dead engine does."""
    engine.on_connect = Connection.reset


def closes_new_connections(engine: ScriptedEngine) -> None:
    """The same, politely."""
    engine.on_connect = lambda connection: connection.transport.close()


def resets_unanswered(engine: ScriptedEngine) -> None:
    """It has read the request."""
    engine.answer_all(Call.reset)


def closes_unanswered(engine: ScriptedEngine) -> None:
    """It has read the request."""
    engine.answer_all(Call.close)


def resets_at_the_head(engine: ScriptedEngine) -> None:
    """It has read the request's head only."""
    engine.on_call = Call.reset


def closes_in_its_own_head(engine: ScriptedEngine) -> None:
    """A head that is not complete is no answer."""

    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\ncontent-le")
        call.close()

    engine.answer_all(script)


def is_busy(engine: ScriptedEngine) -> None:
    """It took nothing on."""
    engine.answer_all(lambda call: call.send(BUSY))


def is_no_http(engine: ScriptedEngine) -> None:
    """Something else listens there."""
    engine.answer_all(lambda call: call.send(b"SSH-2.0-OpenSSH_9.6\r\n"))


def breaks_off_a_unary_answer(engine: ScriptedEngine) -> None:
    """Nothing of it has gone to the client."""

    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        call.close()

    engine.answer_all(script)


def cuts_a_unary_answer(engine: ScriptedEngine) -> None:
    """Its framing does not show it: the body ends with the connection."""

    def script(call: Call) -> None:
        call.send(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"choices": [{"te')
        call.close()

    engine.answer_all(script)


def sends_an_empty_answer(engine: ScriptedEngine) -> None:
    """A 200 that is complete as HTTP."""
    engine.answer_all(lambda call: call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
