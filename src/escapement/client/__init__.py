"""The client: one implementation for trio and asyncio, built on anyio."""
