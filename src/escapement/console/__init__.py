"""The console: web pages that show and change what the brokers have scheduled.

``escapement console`` is a process of its own and a client of the brokers, with the token of each
user. Begin with ``app.py``: the way of a request. Each page has a file in ``pages``, with its
template in ``templates``. The browser needs no build step: ``static`` has a style sheet, a script
and htmx.
"""
