"""A subscription: what is ready for it, what is out, what waits for another attempt.

Pure but for what an ordered subscription reads. ``subscription`` is what all kinds do;
``shared`` and ``ordered`` are the two kinds, and the rest is what these are made of.
"""
