"""The next token of a sequence, and whether it ends the sequence."""

from router.simulator.model.sequence import Grammar, Sequence
from router.simulator.model.tokenizer import EOS, encode


def next_token(sequence: Sequence) -> int:
    """The next token. `min_tokens` masks the end of sequence; `ignore_eos` does not."""
    if sequence.sampling.grammar is not None:
        return _next_written(sequence, sequence.sampling.grammar)
    may_end = sequence.generated >= sequence.sampling.min_tokens
    prompt = sequence.prompt
    if prompt.end_at is not None:
        if may_end and len(sequence.tokens) + 1 == prompt.end_at:
            return EOS
        may_end = False
    return prompt.language.choose(sequence.state, sequence.tokens[-1], end=may_end)


def _next_written(sequence: Sequence, grammar: Grammar) -> int:
    """The next token of an answer that a grammar writes; behind it only its end is admitted."""
    if not sequence.generated:
        # The state depends on the whole prompt, and on a wrong KV cache.
        sequence.written = encode(grammar(sequence.state))
    place = sequence.generated
    return sequence.written[place] if place < len(sequence.written) else EOS


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
