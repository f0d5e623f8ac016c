"""What must not reach a client."""

import re

_PARAMS = re.compile(rb'transfer_params"\s*:\s*[^\sn]')


def leaks_params(answer: bytes) -> bool:
    """Whether an answer has KV transfer parameters that are not null."""
    return _PARAMS.search(answer) is not None
