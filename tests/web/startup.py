"""How a server starts without serving for ever."""

from router.web.server import Server


async def start(server: Server) -> None:
    """As uvicorn's `serve` does."""
    config = server.config
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
