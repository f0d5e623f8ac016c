"""Converts tokens to text incrementally: incomplete characters are held back, and stop strings end
it."""

from codecs import getincrementaldecoder

from router.simulator.model.tokenizer import bytes_of


class TextStream:
    """The text of one sequence, from its tokens."""

    def __init__(self, stops: tuple[str, ...] = (), *, include_stop: bool = False) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""
        # The possible beginning of a stop string is held back.
        self._hold = max(map(len, stops), default=1) - 1
        self.stopped_by: str | None = None

    def feed(self, token: int, *, last: bool = False) -> str:
        """Returns the text that this token completes; with the last token, all that is left.

        `stopped_by` is set when a stop string was found; do not feed further tokens then.
        """
        text = self._held + self._decoder.decode(bytes_of(token), last)
        found = self._find(text)
        if found is not None:
            return found
        keep = 0 if last else min(self._hold, len(text))
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _find(self, text: str) -> str | None:
        places = [(text.find(stop), stop) for stop in self._stops if stop]
        found = [(place, stop) for place, stop in places if place >= 0]
        if not found:
            return None
        place, self.stopped_by = min(found)
        return text[: place + (len(self.stopped_by) if self._include_stop else 0)]
