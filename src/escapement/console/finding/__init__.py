"""Finding messages: the filter of the page Find, and the searches for the messages of one page.

Begin with ``filter.py``. ``pending.py`` searches the messages that the broker has still to deliver,
``log.py`` those that are over. The work for each page is bounded, so a page may end before the
search.
"""
