"""Push: posts the messages of subscriptions to endpoints, as Standard Webhooks describes it.

`escapement push` is a process of its own and an ordinary client of the brokers. ``beside.py`` runs
the pusher in the process of the gateway or the console instead. Begin with ``pusher.py``, which
starts a ``delivery.py`` for each target. These modules decide, and do no I/O:
``outcome.py`` what an answer means for a message, ``window.py`` how many posts are in progress,
``breaker.py`` when a target is left alone, ``signing.py`` the headers of a post, and
``addresses.py`` which addresses may be connected to.
"""
