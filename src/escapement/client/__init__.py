"""The async client: one implementation for trio and asyncio, built on anyio.

Begin with ``connect.py`` and ``broker.py``. The blocking client is ``escapement.sync``.
"""
