"""The client: one implementation for trio and asyncio, by anyio."""
