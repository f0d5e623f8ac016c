"""Where sibling replicas tell of their requests, on the admin listener."""

from fastapi import FastAPI, Request

from router.core.errors import BadRequest
from router.core.peer_loads import decode
from router.net.siblings import PEERS_PATH, Siblings

__all__ = ["add_peers_api"]


def add_peers_api(app: FastAPI, siblings: Siblings, replica: str) -> None:
    """Add the routes to the application that operators reach."""

    @app.get(PEERS_PATH)
    async def peers() -> dict[str, object]:
        """The sibling replicas of this router: who tells, and who is told."""
        return siblings.shown()

    @app.post(PEERS_PATH, include_in_schema=False)
    async def told(request: Request) -> dict[str, str]:
        """A sibling's own requests. The answer names this replica, so that a replica that is
        given its own address notices that."""
        try:
            report = decode(await request.body())
        except ValueError as error:
            raise BadRequest(f"The report is not valid: {error}.") from None
        siblings.hear(report)
        return {"replica": replica}
