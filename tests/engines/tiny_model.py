"""Make a tiny language model with random weights, its tokenizer and chat template, offline.

Run by the lab's own interpreter, which has torch and transformers: `python tiny_model.py FOLDER`.
It imports nothing from the project.
"""
# torch and transformers are in the lab's environment, not in the project's.
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 1024
REASONING = ["<think>", "</think>"]
"""Tokens that are text, as those of Qwen and DeepSeek: vLLM's parsers look for them there."""
LAYERS = 2
HIDDEN = 128
HEADS = 4
"""HIDDEN / HEADS must be at least 32 for vLLM's attention on CPU."""
KV_HEADS = 2
POSITIONS = 8192
SPREAD = 0.3
"""Large initial weights: greedy output then depends on the whole prompt, so a KV cache that came
over wrong shows up as different tokens."""

# Tools are rendered, so that a router that drops them is found out by the prompt's length.
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on the standard library's own text."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    texts = sorted(str(path) for path in stdlib.glob("*.py"))[:60]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(REASONING),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train(texts, trainer)
    tokenizer.add_tokens(REASONING)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """558 208 parameters; the seed makes every lab's model the same."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        initializer_range=SPREAD,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config).to(torch.float32).eval()


def main() -> None:
    """Write tokenizer and weights into the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer).save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    main()
