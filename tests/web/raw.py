"""Bytes to a router as they are."""

from tests.net.client import Answer
from tests.net.harness import Running


async def raw(router: Running, data: bytes, method: str = "POST") -> Answer:
    """What these bytes are answered on a connection of their own."""
    client = await router.client()
    await client.send(data)
    return await client.answer(method)
