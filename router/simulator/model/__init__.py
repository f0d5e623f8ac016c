"""The engine as a pure state machine: scheduler, KV cache, language model."""
