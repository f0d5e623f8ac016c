"""An answer in progress: the choices made from outputs, and their usage."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from router.simulator.api.generation_request import GenerationRequest
from router.simulator.api.text import TextStream
from router.simulator.api.tools import CallReader
from router.simulator.model.sequence import Output, Sequence
from router.simulator.model.tokenizer import decode


class Piece(NamedTuple):
    """What one token adds to a choice."""

    choice: "Choice"
    text: str
    token: int
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
        """Add one token. A stop string in the text ends the choice."""
        assert output.token is not None
        first = not self.tokens
        self.tokens.append(output.token)
        text = self.stream.feed(output.token, last=output.finish is not None)
        self.finish, self.stop_reason = output.finish, output.stop_reason
        if self.stream.stopped_by is not None:
            self.finish, self.stop_reason = "stop", self.stream.stopped_by
        if first and self.echo:
            text = self.echo + text
        self.text += text
        named, arguments = (False, "") if self.call is None else self.call.read(self.text)
        return Piece(self, text, output.token, first, named, arguments)

    @property
    def whole_call(self) -> CallReader | None:
        """The tool call that the text is; None if it is none, or its end is missing."""
        return self.call if self.call is not None and self.call.is_complete else None


class Answer:
    """All choices of an answer."""

    def __init__(self, request: GenerationRequest, sequences: Items[Sequence]) -> None:
        self.request = request
        self.choices = [
            Choice(
                index,
                sequence,
                TextStream(request.stop, include_stop=request.include_stop),
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
        """Prompt tokens that were not computed here, or what the prefill engine tells of them."""
        told = (self.request.kv or {}).get("remote_prefill_cached_tokens")
        if isinstance(told, int):
            return told
        firsts = self.choices[:: self.request.n]
        return sum(choice.sequence.cached + choice.sequence.external for choice in firsts)

    @property
    def kv_params(self) -> dict[str, Any] | None:
        """The KV parameters of the first prompt. Like in vLLM, those of others are not returned and
        expire."""
        return self.choices[0].sequence.kv_params
