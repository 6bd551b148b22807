"""The visit of a user: the session, the rights, one request and its answer.

Begin with ``view.py``: what a page reads and how it answers. ``sessions.py`` and ``user.py`` say
who visits, and ``guard.py`` protects the pages in a browser.
"""
