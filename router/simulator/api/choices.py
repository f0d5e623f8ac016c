"""The answer to a request while it comes about: choices made of outputs, and their usage."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from router.simulator.api.generation_request import GenerationRequest
from router.simulator.api.text import TextStream
from router.simulator.model.sequence import Output, Sequence
from router.simulator.model.tokenizer import decode


class Piece(NamedTuple):
    """What one token adds to a choice."""

    choice: "Choice"
    text: str
    token: int
    finish: str | None
    stop_reason: int | str | None
    first: bool


@dataclass(slots=True, eq=False)
class Choice:
    """One of the answers to a request."""

    index: int
    sequence: Sequence
    stream: TextStream
    echo: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    stop_reason: int | str | None = None

    def take(self, output: Output) -> Piece:
        """Add one token. A stop string found in the text ends the choice here and now."""
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
        return Piece(self, text, output.token, self.finish, self.stop_reason, first)


class Answer:
    """All choices of a request."""

    def __init__(self, request: GenerationRequest, sequences: Items[Sequence]) -> None:
        self.request = request
        self.choices = [
            Choice(
                index,
                sequence,
                TextStream(request.stop, include_stop=request.include_stop),
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
        """Prompts count once, however many choices share them."""
        prompts = sum(map(len, self.request.prompts))
        completion = sum(len(choice.tokens) for choice in self.choices)
        return {
            "prompt_tokens": prompts,
            "total_tokens": prompts + completion,
            "completion_tokens": completion,
        }

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed here."""
        firsts = self.choices[:: self.request.n]
        return sum(choice.sequence.cached + choice.sequence.external for choice in firsts)

    @property
    def kv_params(self) -> dict[str, Any] | None:
        """vLLM shows those of the first prompt only; the others are kept until they expire."""
        return self.choices[0].sequence.kv_params
