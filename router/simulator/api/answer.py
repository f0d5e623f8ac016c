"""An answer in progress: its choices, their text and usage, and what the formats of APIs share."""

from codecs import getincrementaldecoder
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from router.simulator.api.errors import ApiError, stream_frame
from router.simulator.api.generation_request import GenerationRequest
from router.simulator.api.grammar import CallReader
from router.simulator.model.language import bytes_of, decode, ends_within_character
from router.simulator.model.sequence import Output, Sequence


class TextStream:
    """The text of one sequence, from its tokens. Behind a prompt that ends within a character, it
    begins with the prompt's text."""

    def __init__(
        self,
        stops: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
        prompt: Items[int] = (),
    ) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""
        if prompt and ends_within_character(prompt):
            # vLLM's detokenizer has found no text that it could continue, and begins with all.
            self._held = self._decoder.decode(b"".join(map(bytes_of, prompt)))
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


class Piece(NamedTuple):
    """What one output adds to a choice."""

    choice: "Choice"
    text: str
    tokens: list[int]
    first: bool
    names_tool: bool
    """Whether it completes the name in a tool call."""
    arguments: str
    """What it adds to the arguments of a tool call."""


@dataclass(slots=True, eq=False)
class Choice:
    """One choice of an answer."""

    index: int
    sequence: Sequence
    stream: TextStream
    call: CallReader | None
    """Reads the text, if it is to be a tool call."""
    echo: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    stop_reason: int | str | None = None

    def take(self, output: Output) -> Piece:
        """Add one token, or the end of an aborted choice. A stop string in the text ends the
        choice."""
        first = not self.tokens
        tokens: list[int] = []
        text = ""
        if output.token is not None:
            tokens = [output.token]
            text = self.stream.feed(output.token, last=output.finish is not None)
        self.tokens += tokens
        self.finish, self.stop_reason = output.finish, output.stop_reason
        if self.stream.stopped_by is not None:
            self.finish, self.stop_reason = "stop", self.stream.stopped_by
        if first and self.echo:
            text = self.echo + text
        self.text += text
        named, arguments = (False, "") if self.call is None else self.call.read(self.text)
        return Piece(self, text, tokens, first, named, arguments)

    @property
    def whole_call(self) -> CallReader | None:
        """The tool call that the text is; None if it is none, or its end is missing."""
        return self.call if self.call is not None and self.call.is_complete else None


class EngineAnswer:
    """All choices of an answer."""

    def __init__(self, request: GenerationRequest, sequences: Items[Sequence]) -> None:
        self.request = request
        self.choices = [
            Choice(
                index,
                sequence,
                TextStream(
                    request.stop,
                    include_stop=request.include_stop,
                    prompt=sequence.prompt.tokens,
                ),
                CallReader(request.tool_call) if request.tool_call is not None else None,
                decode(sequence.prompt.tokens) if request.echo else "",
            )
            for index, sequence in enumerate(sequences)
        ]
        self._by_sequence = {choice.sequence: choice for choice in self.choices}

    @property
    def complete(self) -> bool:
        return all(choice.finish is not None for choice in self.choices)

    def choice_of(self, sequence: Sequence) -> Choice:
        return self._by_sequence[sequence]

    def usage(self) -> dict[str, int]:
        """The usage. A prompt counts once, however many choices it has."""
        prompts = sum(map(len, self.request.prompts))
        completion = sum(len(choice.tokens) for choice in self.choices)
        return {
            "prompt_tokens": prompts,
            "total_tokens": prompts + completion,
            "completion_tokens": completion,
        }

    @property
    def cached(self) -> int:
        """Prompt tokens that were cached: by the prefill engine, if it reports that, or here."""
        reported = (self.request.kv or {}).get("remote_prefill_cached_tokens")
        if isinstance(reported, int):
            return reported
        firsts = self.choices[:: self.request.n]
        return sum(choice.sequence.cached + choice.sequence.external for choice in firsts)

    @property
    def kv_params(self) -> dict[str, Any] | None:
        """The KV parameters of the first prompt. Like in vLLM, those of others are not returned and
        expire."""
        return self.choices[0].sequence.kv_params


DONE = b"data: [DONE]\n\n"


def data_frame(document: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def event_frame(document: dict[str, Any]) -> bytes:
    """A server-sent event named after its type."""
    name: str = document["type"]
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"


class Dialect:
    """Writes one answer, as a whole or as a stream of frames."""

    at_once = False
    """Whether `opening` is sent before the first token."""

    def __init__(self, answer: EngineAnswer, answer_id: str, created: int, details: bool) -> None:
        self.answer = answer
        self.request = answer.request
        self.id = answer_id
        self.created = created
        self._details = details

    def opening(self) -> bytes:
        """What is sent before the first token."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        raise NotImplementedError

    def closing(self) -> bytes:
        """What is sent after the last token."""
        raise NotImplementedError

    def failure(self, error: ApiError) -> bytes:
        """The end of a failed stream."""
        return stream_frame(error) + DONE

    def whole(self) -> dict[str, Any]:
        raise NotImplementedError

    def usage(self, *, stream: bool = False) -> dict[str, Any]:
        """The usage. In a stream vLLM omits null members."""
        usage: dict[str, Any] = dict(self.answer.usage())
        cached = self.answer.cached if self._details else None
        details = None if cached is None else {"cached_tokens": cached}
        if details is not None or not stream:
            usage["prompt_tokens_details"] = details
        if not stream:
            usage["completion_tokens_details"] = None
        return usage

    def token_ids(self, tokens: list[int]) -> list[int] | None:
        return tokens if self.request.return_token_ids else None
