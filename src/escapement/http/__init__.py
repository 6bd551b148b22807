"""What every HTTP server of escapement needs: serving, bodies, senders, and statuses of errors.

Only ``sender.py`` and ``statuses.py`` can be imported without the packages of the extra ``http``.
"""
