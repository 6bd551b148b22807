"""Tools for agents, over the Model Context Protocol (MCP): schedule, look at and change messages.

An agent starts ``escapement mcp`` as a process of its own, and talks to it over stdin and stdout.
The process is an ordinary client of the brokers. Its tools only read, unless its operator allows
writing. ``limits.py`` has the operator's limits.

Messages come from others, and may have text that tries to instruct the agent. So results wrap what
a message contains as data (``content.py``).

Begin with ``serving.py``, which runs the process, and ``server.py``, which carries out calls. A
tool declares the types of its arguments and its result (``tool.py``). The tools are in
``looking.py``, ``scheduling.py`` and ``changing.py``.

All modules but ``limits.py`` need the packages of the extra ``mcp``.
"""
