"""The functions of msgpack that MoRIIOConnector calls, by msgspec, which vLLM requires."""
# msgspec is in the lab's environment, not in the project's.
# mypy: disable-error-code="import-not-found"

from types import SimpleNamespace

import msgspec

dumps = packb = msgspec.msgpack.encode
loads = unpackb = msgspec.msgpack.decode
exceptions = SimpleNamespace(ExtraData=msgspec.DecodeError, UnpackException=msgspec.DecodeError)
