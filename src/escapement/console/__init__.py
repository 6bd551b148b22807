"""The console: web pages that show and change what the brokers have scheduled.

``escapement console`` is a process of its own and a client of the brokers, with the token of each
user. Begin with ``app.py``: the way of a request. ``visit`` has the user's session and the frame of
an answer. Each page has a file in ``pages``, with its templates in ``templates``. ``finding`` and
``reading`` ask the brokers, and ``text`` turns values into texts and charts. The browser needs no
build step: ``static`` has a style sheet, a script and htmx.
"""
