"""Parts of all HTTP servers of escapement: serving, bodies, senders, and statuses of errors.

Only ``sender.py`` and ``statuses.py`` can be imported without the packages of the extra ``http``.
"""
