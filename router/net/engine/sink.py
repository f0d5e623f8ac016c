"""What receives an engine's answer from its connection."""

from mypy_extensions import mypyc_attr

from router.core.values import Failure
from router.net.engine.answer_head import AnswerHead

__all__ = ["Sink"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """Receives one answer. `on_end` or `on_lost` is called last and exactly once, unless the
    request is aborted.

    It is a class, not a Protocol, because compiled code calls a Protocol's methods by name: 400
    instructions more per chunk. The decorator lets classes that are not compiled derive from it.
    """

    __slots__ = ()

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """The status and headers have arrived. `length`: of the body in bytes, if the engine states
        it. `has_body`: `on_data` follows immediately."""
        raise NotImplementedError

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """The body data of one read have arrived. After the last ones `on_end` follows
        immediately."""
        raise NotImplementedError

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Perhaps one whole framed chunk has arrived, with `size` bytes of data. It is one if
        `chunk` ends with the line end of its framing.

        Returns True if the sink took it as it is; otherwise it is parsed and passed to `on_data`.
        """
        raise NotImplementedError

    def on_end(self) -> None:
        """The answer is complete."""
        raise NotImplementedError

    def on_lost(self, failure: Failure) -> None:
        """The answer will not be completed."""
        raise NotImplementedError
