"""Prompts and data sets, and the tokenizer that counts them."""
