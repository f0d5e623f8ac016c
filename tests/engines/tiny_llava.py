"""Make a tiny LLaVA with random weights and its processor, offline: images of 56 x 56 pixels become
16 embeddings.

Run by the lab's own interpreter, as `tiny_model.py`, whose tokenizer and language model it has:
`python tiny_llava.py FOLDER`.
"""
# torch and transformers are in the lab's environment, not in the project's.
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_model import HIDDEN, SPREAD, make_model, make_tokenizer  # the folder of this script
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor

IMAGE = "<image>"
NAMES = ("vision_tower.", "vision_tower.vision_model.")
"""What transformers 5 writes, and what it should be."""
PIXELS = 56
PATCH = 14
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    """Write processor and weights into the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    size = {"height": PIXELS, "width": PIXELS}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": PIXELS}, crop_size=size),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = make_model(tokenizer).config
    text.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=PIXELS,
            patch_size=PATCH,
            initializer_range=SPREAD,
        ),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        initializer_range=SPREAD,
    )
    LlavaForConditionalGeneration(config).to(torch.float32).eval().save_pretrained(folder)
    _rename(folder / "model.safetensors")


def _rename(path: Path) -> None:
    """Name the weights as LLaVA's published ones are, and as vLLM looks for them."""
    weights = {name.replace(*NAMES): tensor for name, tensor in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})


if __name__ == "__main__":
    main()
