"""The checks of the job ``audit``: of the log, of an index, and of an archive.

Begin with pipeline/audit.py, which runs the job.
"""
