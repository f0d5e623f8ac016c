"""A stream goes on with another engine after its first token."""
