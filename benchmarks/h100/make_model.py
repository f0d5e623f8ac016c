"""Write a Qwen3 of any shape: config.json, a tokenizer, and random weights if they have a spread.

Run by the interpreter of the engines, which has torch and transformers, from any folder:
`python make_model.py FOLDER SHAPE`, where SHAPE is the JSON of `profiles.Shape`.
"""
# torch and transformers are in the engines' environment, not in the project's.
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TRAINED = 1000
"""Tokens that are learned from text; the rest of the vocabulary is padding."""
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on the standard library's text. Every id up to the size
    of the vocabulary has a text of its own, so that each generated token is an event with content.
    """
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED,
        special_tokens=[END, START, STOP],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train(sorted(map(str, stdlib.glob("*.py")))[:60], trainer)
    whole = json.loads(tokenizer.to_str())
    words = whole["model"]["vocab"]
    words |= {f"\u0120w{number}": number for number in range(len(words), vocabulary)}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(whole)), eos_token=STOP, pad_token=END
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_config(shape: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Qwen3's own settings, with the shape's sizes."""
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=shape["vocabulary"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"],
        max_position_embeddings=shape["positions"],
        tie_word_embeddings=shape["tied"],
        initializer_range=shape["spread"] or 0.02,
        rope_theta=1_000_000,
        rms_norm_eps=1e-6,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="bfloat16",
    )


def main() -> None:
    """Write tokenizer, configuration and weights into the folder named on the command line."""
    folder, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(shape["vocabulary"])
    tokenizer.save_pretrained(folder)
    config = make_config(shape, tokenizer)
    if shape["spread"] is None:
        config.save_pretrained(folder)
        return
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen3ForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
