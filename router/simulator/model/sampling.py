"""The next token of a sequence, and whether it ends the sequence."""

from router.simulator.model.sequence import Sequence
from router.simulator.model.tokenizer import EOS


def next_token(sequence: Sequence) -> int:
    """The next token. `min_tokens` masks the end of sequence; `ignore_eos` does not."""
    may_end = sequence.generated >= sequence.sampling.min_tokens
    prompt = sequence.prompt
    if prompt.end_at is not None:
        if may_end and len(sequence.tokens) + 1 == prompt.end_at:
            return EOS
        may_end = False
    return prompt.language.choose(sequence.state, sequence.tokens[-1], end=may_end)


def end_of(sequence: Sequence, token: int) -> tuple[str | None, int | None]:
    """Finish reason and stop reason after this token. Like vLLM's check_stop: first the end of
    sequence, then stop tokens, then the length."""
    sampling = sequence.sampling
    if sequence.generated >= sampling.min_tokens:
        if token == EOS and not sampling.ignore_eos:
            return "stop", None
        if token in sampling.stop_token_ids:
            return "stop", token
    return ("length", None) if sequence.generated >= sampling.max_tokens else (None, None)
