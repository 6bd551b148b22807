"""The measurements, each in a module of its own. Begin with ``publish``.

A measurement sets up its stage, runs several times, and returns its outcome.
"""
