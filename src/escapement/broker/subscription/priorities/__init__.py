"""Ready messages in the order of priorities and due times, and how they are read from the index.

Begin with ``band.py``: a subscription reads the index in up to three priority bands. ``ready.py``
has the ready messages of a band, and ``staged.py`` is the read-ahead cache.
"""
