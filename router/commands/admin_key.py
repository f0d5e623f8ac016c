"""The API key with which a command accesses the admin listener of a router."""

from collections.abc import Mapping
from pathlib import Path

from router.commands.usage import UsageError
from router.core.limits.api_keys import ApiKeys, first_key
from router.settings import admin_key_file

__all__ = ["admin_headers"]


def admin_headers(path: Path | None) -> Mapping[str, str]:
    """The headers with the first key in a file, which may also be the file of a router that is
    configured by this environment. Empty without a file. Raises UsageError."""
    path = path or admin_key_file()
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
        ApiKeys(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--admin-key-file: {path}: {reason}") from None
    key = first_key(text)
    if key is None:
        raise UsageError(
            f"--admin-key-file: {path} holds hashes only; name one with the key itself"
        )
    return {"authorization": f"Bearer {key}"}
